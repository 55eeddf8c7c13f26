"""Shards: one Celery task that carries many requests of a run, and the outcomes it stores.

Level 4. Imports ``broker``, ``metrics`` and the client's ledger; imported by ``worker``.
"""
