"""Dispatch: requests handed to the fleet as shards, and their outcomes collected again.

Level 7. Imports ``celery``, ``state``, ``packing`` and ``runtime``; imported by ``run`` and ``client``. The worker
imports only the ledger from here.
"""
