"""The embedded Valkey: started, shared by the runs of one user and key, kept alive, and stopped.

Imported by ``local.fleet``, ``local.flower`` and ``local.processes``.
"""
