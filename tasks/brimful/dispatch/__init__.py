"""Handing requests to the fleet as shards, and collecting their outcomes.

Level 7. Imports ``celery``, ``state``, ``packing`` and ``runtime``; imported by ``run`` and ``client``. The worker
imports only ``ledger`` from here.
"""
