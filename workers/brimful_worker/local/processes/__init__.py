"""Child processes of a local fleet: how they start, their environment, their logs, and the mock gateway as one of them.

Imported by ``local.fleet``, ``local.supervisor`` and ``local.flower``.
"""
