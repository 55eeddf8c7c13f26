"""Admission's conversation with Redis: one coordinator a process, its connections, its scripts.

Imported by ``admission`` only.
"""
