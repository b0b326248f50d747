"""A case in words, and its failure as a script that stands alone."""
