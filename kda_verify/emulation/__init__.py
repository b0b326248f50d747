"""Emulated kernels of known precision, and the calibration of the budget by them."""
