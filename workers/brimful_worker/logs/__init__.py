"""Logging of a worker, a front door and Flower: what Celery's records may hold, the fields of a record, and JSON.

Level 1. Imports the vocabulary and ``brimful.runtime``.
"""
