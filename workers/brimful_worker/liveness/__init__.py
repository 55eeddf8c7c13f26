"""Liveness: no request outlives its slot's lease, even when the event loop or the whole process stands still.

Level 1. Imports nothing of the worker; imported by ``admission``, ``provider`` and ``worker``.
"""
