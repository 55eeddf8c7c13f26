"""Callers of the front door: their tokens, limits, shares of the key and usage, across all front doors of a fleet."""
