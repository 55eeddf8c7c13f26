"""The embedded Valkey: started, shared between runs, kept alive, and stopped.

Imported by ``local.fleet`` and ``local.flower``.
"""
