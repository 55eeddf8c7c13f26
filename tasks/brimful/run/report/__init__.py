"""The HTML report of a run: its figures, charts and page.

Imported by ``cli.report``.
"""
