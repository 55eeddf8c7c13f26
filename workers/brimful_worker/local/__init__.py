"""A fleet on this machine: embedded Valkey, worker processes, Flower.

Level 4. Imports ``gateway``, ``admission`` and ``metrics``; the command line loads it through
``brimful.runtime.extras``.
"""
