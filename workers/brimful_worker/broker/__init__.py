"""Celery's Redis broker as this worker uses it: kombu's transport, renewal of unacked messages, fairness of queues.

Level 2. Imports ``metrics``; imported by ``pool``, ``admission`` and everything above.
"""
