"""Sweeps: every line is sampled with each of several combinations of fields. Imported by `run` and the command line."""
