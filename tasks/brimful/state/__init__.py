"""State in Redis: URL, key names, fleet status, queue depths, limits, and retrying until Redis answers.

Level 5. Imports the vocabulary, ``packing`` and ``runtime``; imported by ``celery``, ``doctor`` and everything above.
"""
