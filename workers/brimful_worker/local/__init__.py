"""A fleet on this machine: embedded Valkey, worker processes, Flower.

Level 4. Imports ``gateway``, ``admission``, ``startup`` and ``metrics``; commands load it through
``brimful.runtime.extras``.
"""
