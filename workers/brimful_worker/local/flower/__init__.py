"""Flower as a local fleet runs it, with prompts redacted.

Imported by ``local.fleet``.
"""
