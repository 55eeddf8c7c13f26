"""What a run shows in the terminal: live progress, and the summary at the end.

Imported by the top files of ``run``.
"""
