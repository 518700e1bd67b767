"""Comparison with libraries that people install: whether the suite computes the same numbers."""
