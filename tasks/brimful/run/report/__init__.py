"""The HTML report of a run: its figures, charts and page.

Imported by ``cli.report`` and the top files of ``run``.
"""
