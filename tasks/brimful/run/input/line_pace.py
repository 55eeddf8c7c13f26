"""Holds a run's lines back until another process allows them. Only batches of the front door use it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from brimful.errors import InputError

_LOOK_S = 0.2


class LinePace:
    """Reads the number of the last line that is allowed from a file, which is replaced as the number grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = 0

    async def wait(self, line: int, stopped: Callable[[], bool]) -> None:
        """Returns when the line is allowed, or the run has been stopped. Raises InputError for a damaged file."""
        while line > self._last and not stopped():
            try:
                self._last = int(self._path.read_bytes())
            except (OSError, ValueError) as error:
                raise InputError(f"--pace {self._path}: must be a file with the number of a line: {error}") from None
            if line > self._last:
                await asyncio.sleep(_LOOK_S)
