"""Singles: one Celery task that carries one request, sampled once however often its task is delivered or enqueued.

Level 4. Imports the client's key names; imported by ``worker``.
"""
