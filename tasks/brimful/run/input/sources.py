"""Opens the inputs of a run: files, and standard input."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from brimful.errors import UsageError
from brimful.run.input.files.expand import suffix_of
from brimful.run.input.files.kinds import FOREIGN_SUFFIXES
from brimful.run.input.files.reading import TableOptions, read_rows
from brimful.run.input.files.row import Row
from brimful.run.input.files.unpack import STDIN


@dataclass(frozen=True, slots=True)
class Source:
    """One input: a path, or ``-`` for standard input."""

    path: str

    @property
    def name(self) -> str:
        """For messages."""
        return "<stdin>" if self.path == STDIN else self.path

    @property
    def folder(self) -> Path | None:
        """Where files are that a line names; None for standard input."""
        return None if self.path == STDIN else Path(self.path).parent

    @property
    def suffix(self) -> str:
        """The lower-case suffix that names the format, without ``.gz`` or ``.zst``."""
        return suffix_of(self.path)

    @property
    def regular(self) -> bool:
        """A regular file, which can be read twice, as opposed to standard input or a pipe."""
        return self.path != STDIN and Path(self.path).is_file()

    def check(self, forced: bool) -> None:
        """Raises UsageError when this cannot be an input. ``forced``: the user named the format."""
        if self.path == STDIN:
            return
        path = Path(self.path)
        try:
            mode = path.stat().st_mode
            if stat.S_ISDIR(mode):
                raise UsageError(
                    f"{self.path}: is a directory; name the files in it (for instance {self.path}/*.jsonl)"
                )
            if stat.S_ISREG(mode):
                with path.open("rb"):
                    pass
                if path.stat().st_size == 0:
                    raise UsageError(f"{self.path}: is empty; write a request or a prompt on each line")
        except FileNotFoundError:
            raise UsageError(f"{self.path}: no such file; check the name, or use - to read standard input") from None
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be read: {error.strerror or error}") from None
        if self.suffix in FOREIGN_SUFFIXES and not forced:
            raise UsageError(
                f"{self.path}: is {FOREIGN_SUFFIXES[self.suffix]}; if it is another kind of file with that suffix, "
                "name the kind with --input-format"
            )

    def rows(self, options: TableOptions, note: Callable[[str], None]) -> Iterator[Row]:
        """All rows, blank lines too. Raises UsageError, and InputError for a file that is truncated or not readable."""
        return read_rows(self.path, self.name, self.suffix, options, note)
