"""Output files of a run: rollouts, errors, the resume files beside them, and other formats.

Imported by the top files of ``run``, by ``run.display`` and ``run.report``.
"""
