"""Prometheus metrics of a worker: the catalogue, and the HTTP server that exposes it.

Level 1. Imports nothing of the worker; any room above may import it.
"""
