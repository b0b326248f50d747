"""Metamorphic laws, as data."""
