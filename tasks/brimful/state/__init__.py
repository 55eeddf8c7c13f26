"""State in Redis: its URL, key names, fleet status, queue depths, live limits, and retrying until Redis answers.

Level 5. Imports the vocabulary and ``runtime``; imported by ``celery``, ``doctor``, ``dispatch`` and everything above.
"""
