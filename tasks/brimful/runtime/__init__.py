"""Process-level helpers: the port to the worker, optional packages, redaction, threads, signals, files, JSON and spans.

Level 4. Imports only the vocabulary; any room above may import it.
"""
