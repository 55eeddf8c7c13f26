"""Runs a fleet on this machine: starts and supervises an embedded Valkey, worker processes and Flower.

Level 4. Imports ``gateway``, ``admission``, ``startup`` and ``metrics``; commands load it through
``brimful.runtime.extras``.
"""
