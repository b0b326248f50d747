"""What the kernels cost."""
