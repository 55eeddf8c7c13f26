"""The commands of ``brimful runs``, which work on any machine that reaches the Redis."""

from brimful.cli.runs.commands import runs

__all__ = ["runs"]
