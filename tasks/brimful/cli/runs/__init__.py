"""``brimful runs``: runs as objects, from any machine that reaches the Redis."""

from brimful.cli.runs.commands import runs

__all__ = ["runs"]
