"""What a run leaves to read: a page, a file for CI, and the difference between two runs."""
