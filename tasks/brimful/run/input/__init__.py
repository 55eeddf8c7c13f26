"""Input files of a run: their lines, formats and ids, and what changed in them since the command was last executed.

Imported by the top files of ``run`` and by ``run.output``.
"""
