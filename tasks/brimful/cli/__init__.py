"""The ``brimful`` command's way in. It imports next to nothing, so that Ctrl-C is heard from the first moment on.

The commands themselves: :mod:`brimful.cli.commands`.
"""

from __future__ import annotations

import sys

from brimful.runtime import interrupt


def main() -> None:
    """The console script. User-caused errors are a line on stderr and an exit code, never a traceback."""
    interrupt.take()
    sys.exit(run_command(sys.argv[1:]))


def run_command(arguments: list[str]) -> int:
    """Returns the exit code (DESIGN: 0, 1, 2, 3, 4, 5, 130)."""
    from brimful.cli import commands

    return commands.run_command(arguments)
