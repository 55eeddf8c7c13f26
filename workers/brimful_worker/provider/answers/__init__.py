"""What an answer means: pure functions from status, headers and body to a classification.

Imported by ``provider`` and ``sampling``.
"""
