"""The entry point of the ``brimful`` command, whose commands are in :mod:`brimful.cli.commands`.

Level 10. It imports little before it handles Ctrl-C, so that Ctrl-C works from the first moment.
"""

from __future__ import annotations

import sys

from brimful.runtime import encoding, interrupt


def main() -> None:
    """The console script. Exits with the codes of :class:`brimful.errors.ExitCode`."""
    interrupt.take()
    encoding.use_plain_text()
    from brimful.cli import commands

    sys.exit(commands.run_command(sys.argv[1:]))
