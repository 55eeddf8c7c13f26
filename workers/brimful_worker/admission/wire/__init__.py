"""The admission's conversation with Redis: one coordinator a process, its connections, its script.

Imported by ``admission`` only.
"""
