"""Packing: how many prompts share one request, and how their choices are taken apart again.

Level 4. Imports only the vocabulary; imported by ``dispatch``, ``client``, ``run`` and the worker.
"""
