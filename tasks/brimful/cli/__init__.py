"""The entry point of the ``brimful`` command, whose commands are in :mod:`brimful.cli.commands`.

Level 10. It imports little before it handles Ctrl-C, so that Ctrl-C works from the first moment.
"""

from __future__ import annotations

import gc
import sys

from brimful.runtime import encoding, interrupt

_GC_THRESHOLD = 50_000
"""New objects before the garbage collector looks. With Python's 700 it walks what is imported again and again, which is
a tenth of a command's start; next to none of it is garbage."""


def main() -> None:
    """The console script. Exits with the codes of :class:`brimful.errors.ExitCode`."""
    gc.set_threshold(_GC_THRESHOLD)
    encoding.open_closed_streams()
    interrupt.take()
    encoding.use_plain_text()
    from brimful.cli import commands

    sys.exit(commands.run_command(sys.argv[1:]))
