"""Flower as a local fleet runs it: with a login, without the API key, and with prompts redacted.

Imported by ``local.fleet`` and ``local.supervisor``.
"""
