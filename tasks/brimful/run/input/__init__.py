"""Input files of a run: where lines come from, their format, their ids, and what changed since the last start.

Imported by the top files of ``run`` and by ``run.output``.
"""
