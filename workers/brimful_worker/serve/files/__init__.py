"""``/v1/files``: what callers upload for batches, and what batches give them, kept on this machine's disk.

Several front doors on one machine may share the folder: whatever they know of a file is in it.
"""
