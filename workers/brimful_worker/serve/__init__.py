"""The front door: an OpenAI-compatible HTTP server that samples within the key's limits, like a worker without Celery.

Level 7. Imported by the ``serve`` command and by a local fleet's child process, both by name.
"""
