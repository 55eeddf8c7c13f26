"""Sampling a file: from the command's options to the exit code.

A *run* may take several executions of the command, each of which continues the one before: its *tries*.

Level 8, beside ``client``; neither imports the other. The top files put a run together from four inner rooms
(``input``, ``output``, ``display``, ``report``), which never import the top files.
"""
