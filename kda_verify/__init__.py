"""The verdict: cases, the subjects they are put to, and the comparison with the oracle."""
