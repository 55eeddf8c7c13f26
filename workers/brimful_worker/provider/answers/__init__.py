"""Answers and their classification: pure functions of status, headers and body.

Imported by ``provider`` and ``sampling``.
"""
