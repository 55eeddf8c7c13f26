"""Prompts, system prompts and messages made from the columns of a line. Imported by the reader and the command line.

A text that holds ``{{``, ``{%`` or ``{#`` is a Jinja2 template. In any other, ``{name}`` stands for a column, and all
other braces for themselves.
"""
