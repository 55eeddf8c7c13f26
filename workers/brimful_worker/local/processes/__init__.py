"""Child processes of a local fleet: environment, logs, supervision, restarts.

Imported by ``local.fleet`` and ``local.flower``.
"""
