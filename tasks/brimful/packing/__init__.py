"""Packing: many prompts in one request, how many of them, and the answer divided among their lines.

Level 4. Imports only the vocabulary; imported by ``dispatch``, ``client``, ``run`` and the worker.
"""
