"""Faults that the mock gateway can inject: one coroutine function each, and the rules that say when.

Imported by the gateway only.
"""
