"""Faults that the mock gateway can inject, as small callables.

Imported by the gateway only.
"""
