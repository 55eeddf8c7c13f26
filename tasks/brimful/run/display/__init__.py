"""What a run shows on stderr: live progress, and the summary at the end.

Imported by the top files of ``run``, and ``stats`` by ``output`` and ``report``.
"""
