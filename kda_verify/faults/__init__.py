"""Planted faults: wrong kernels that the checks must find."""
