"""Parity: runs of the authors' codes, stored as numbers, made again by the suite's loop (docs/reference/parity.md)."""
