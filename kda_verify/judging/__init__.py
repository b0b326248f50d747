"""Judging: what must come back, how it is compared, and the verdict."""
