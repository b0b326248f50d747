"""Mutation: how many small changes of kernels, contract, budget and comparison are noticed."""
