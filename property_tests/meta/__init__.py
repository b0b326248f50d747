"""Tests of the checks themselves."""
