"""Sampling: one request's life, from admission through attempts to its outcome.

Level 5. Imports ``admission``, ``provider`` and what lies below; imported by ``worker``.
"""
