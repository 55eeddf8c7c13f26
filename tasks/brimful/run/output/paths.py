"""The files of a run: what the user named with ``-o``, and the files beside it."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

from brimful.errors import FleetError, UsageError
from brimful.words.phrases import enumerated

_LINES = ("", ".jsonl", ".ndjson", ".jsonlines", ".json", ".txt", ".out")
"""Suffixes under which JSON lines are written."""
_FOREIGN = (".7z", ".bz2", ".h5", ".hdf5", ".mp3", ".mp4", ".sqlite3")


TABLES = (".csv", ".tsv", ".parquet")
"""Suffixes of outputs that are tables, with one row a rollout."""
SUFFIXES = (".jsonl", *TABLES)
"""Of outputs, as help and messages name them."""


class OutputFormat(StrEnum):
    """``--format``: its values, each with the words of the command's help."""

    _value_: str
    words: str
    own_errors: bool
    """Whether the errors file has this format too; failures then stand in another file in brimful's own format."""

    ROLLOUTS = "rollouts", "one rollout a line"
    OPENAI_BATCH = "openai-batch", "OpenAI's Batch API's", True

    def __new__(cls, name: str, words: str, own_errors: bool = False) -> Self:
        member = str.__new__(cls, name)
        member._value_, member.words, member.own_errors = name, words, own_errors
        return member

    @classmethod
    def recorded(cls, sidecar: object) -> OutputFormat:
        """The format that a run's sidecar names. Tables are made of rollouts."""
        return next((form for form in cls if form == sidecar), cls.ROLLOUTS)


class Order(StrEnum):
    """``--order``"""

    COMPLETION = "completion"
    INPUT = "input"


@dataclass(frozen=True, slots=True)
class RunPaths:
    """OUT, and the names derived from it."""

    output: Path
    form: OutputFormat = OutputFormat.ROLLOUTS

    @property
    def suffix(self) -> str:
        return self.output.suffix.lower()

    @property
    def table(self) -> bool:
        """Whether the name makes it a table, with one row a rollout."""
        return self.suffix in TABLES

    @property
    def converted(self) -> bool:
        """Whether OUT is made from the rollouts file when the command ends, instead of being that file."""
        return self.table or self.form is not OutputFormat.ROLLOUTS

    @property
    def rollouts(self) -> Path:
        """One JSON line per rollout, as they come. A run resumes from it."""
        return _beside(self.output, ".rollouts.jsonl") if self.converted else self.output

    @property
    def kept(self) -> Path:
        """Rollouts of a try under which the rollouts file was removed or replaced; the next try adds them to it."""
        return _beside(self.rollouts, ".kept")

    @property
    def errors(self) -> Path:
        """Failures: in the format's own form if it has one, otherwise in brimful's own, also where OUT is a table."""
        return _beside(self.output, ".errors.jsonl")

    @property
    def failures(self) -> Path:
        """Failures in brimful's own format: the same file as ``errors``, unless the format has its own."""
        return _beside(self.output, ".failures.jsonl") if self.form.own_errors else self.errors

    @property
    def rejected(self) -> Path:
        """Rollouts that ``--schema`` or ``--hook`` did not accept."""
        return _beside(self.output, ".rejected.jsonl")

    @property
    def sidecar(self) -> Path:
        """The run's id and parameters."""
        return _beside(self.output, ".run.json")

    @property
    def lines(self) -> Path:
        """A digest of each input line; also the lock."""
        return _beside(self.output, ".run.lines")

    @property
    def report(self) -> Path:
        return _beside(self.output, ".report.html")

    @property
    def all(self) -> list[Path]:
        """Without the report."""
        results = (self.output, self.rollouts, self.errors, self.failures, self.rejected)
        kept = (self.kept, _beside(self.failures, ".kept"), _beside(self.rejected, ".kept"))
        return list(dict.fromkeys([*results, *kept, self.sidecar, self.lines]))

    def check(self, inputs: list[str]) -> None:
        """Raises UsageError or OSError when OUT cannot be written, UsageError when it would overwrite an input."""
        folder = self.output.parent
        with suppress(FileNotFoundError, NotADirectoryError):
            mode = os.stat(self.output).st_mode
            if stat.S_ISDIR(mode):
                raise UsageError(f"-o {self.output}: is a directory; name a file in it")
            if not stat.S_ISREG(mode):
                raise UsageError(f"-o {self.output}: is not a regular file; use -o - for standard output")
        if not folder.is_dir():
            raise UsageError(f"-o {self.output}: there is no directory {folder}; make it first: mkdir -p {folder}")
        if not os.access(folder, os.W_OK) or (self.output.exists() and not os.access(self.output, os.W_OK)):
            raise UsageError(f"-o {self.output}: is not writable; choose another place")
        if self.suffix in (".gz", ".zst"):
            raise UsageError(
                f"-o {self.output}: a run cannot resume from a compressed output; leave {self.output.suffix} out"
            )
        # A suffix with a digit may be part of a name: results-v2.1. Earlier releases wrote JSON lines under any name.
        known = self.table or self.suffix in _LINES or self.sidecar.exists()
        if not known and (self.suffix[1:].isalpha() or self.suffix in _FOREIGN):
            raise UsageError(
                f"-o {self.output}: {self.output.suffix} files cannot be written; name a "
                f"{enumerated(SUFFIXES, 'or')} file"
            )
        for name in inputs:
            if name != "-" and any(mine.exists() and os.path.samefile(mine, name) for mine in self.all):
                raise UsageError(f"-o {self.output}: would overwrite the input {name}; name another output")

    def set_aside(self) -> Path | None:
        """Rename the files of an earlier run. Returns the output's new name, or None when there were none."""
        there = [path for path in self.all if path.exists() and (path != self.lines or path.stat().st_size)]
        if not there:
            return None
        stamp = time.strftime("%Y%m%d-%H%M%S")
        while _beside(self.output, f".before-{stamp}").exists():
            stamp += "x"
        for path in there:
            path.rename(_beside(self.output, f".before-{stamp}{path.name[len(self.output.name) :]}"))
        return _beside(self.output, f".before-{stamp}")

    def put_back(self, aside: Path) -> None:
        """Undo :meth:`set_aside`, which has returned ``aside``. A file that is there meanwhile stays, but for the lock.

        The lock comes last: it keeps other runs out until all files are in their places.
        """
        for path in self.all:
            moved = _beside(aside, path.name[len(self.output.name) :])
            if moved.exists() and (path == self.lines or not path.exists()):
                moved.rename(path)


_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


@contextmanager
def naming_place(output: Path) -> Iterator[None]:
    """Turn an OSError of OUT, or of a file beside it, into an error that names the file and the way out.

    Raises UsageError for a place where no file can be, and FleetError for a disk that is full or broken.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        file = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes | os.PathLike) else str(output)
        if error.errno in _OF_THE_DISK:
            raise FleetError(f"cannot write {file}: {reason}; the same command resumes the run") from None
        beside = f" ({file})" if file != str(output) else ""
        raise UsageError(f"-o {output}: cannot be written: {reason}{beside}; name another output") from None


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
