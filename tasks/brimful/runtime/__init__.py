"""Process-level helpers: the port to the worker, optional packages, redaction, threads, signals, files and JSON.

Level 4. Imports only the vocabulary; any room above may import it.
"""
