"""The files of a run: what the user named with ``-o``, and what lies beside it."""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from brimful.errors import UsageError


class OutputFormat(StrEnum):
    """``--format``"""

    ROLLOUTS = "rollouts"
    OPENAI_BATCH = "openai-batch"


class Order(StrEnum):
    """``--order``"""

    COMPLETION = "completion"
    INPUT = "input"


@dataclass(frozen=True, slots=True)
class RunPaths:
    """Where a run keeps what. Other names are made of OUT's."""

    output: Path
    form: OutputFormat = OutputFormat.ROLLOUTS

    @property
    def parquet(self) -> bool:
        return self.output.suffix == ".parquet"

    @property
    def converted(self) -> bool:
        """Whether OUT is made of the ledger at the end of a try, and is not the ledger itself."""
        return self.parquet or self.form is not OutputFormat.ROLLOUTS

    @property
    def ledger(self) -> Path:
        """A line a rollout, as they come; what a run resumes from."""
        return _beside(self.output, ".rollouts.jsonl") if self.converted else self.output

    @property
    def errors(self) -> Path:
        return _beside(self.output, ".errors.jsonl")

    @property
    def error_ledger(self) -> Path:
        """Failures in our own form; OUT.errors.jsonl itself, but where that is made in OpenAI's."""
        return _beside(self.output, ".failures.jsonl") if self.form is OutputFormat.OPENAI_BATCH else self.errors

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
        return list(dict.fromkeys([self.output, self.ledger, self.errors, self.error_ledger, self.sidecar, self.lines]))

    def check(self, inputs: list[str]) -> None:
        """Raises UsageError when OUT cannot be written, or would overwrite an input."""
        folder = self.output.parent
        if self.output.is_dir():
            raise UsageError(f"-o {self.output}: is a directory; name a file in it")
        if self.output.exists() and not stat.S_ISREG(self.output.stat().st_mode):
            raise UsageError(f"-o {self.output}: is no regular file; use -o - for standard output")
        if not folder.is_dir():
            raise UsageError(f"-o {self.output}: there is no directory {folder}; make it first: mkdir -p {folder}")
        if not os.access(folder, os.W_OK) or (self.output.exists() and not os.access(self.output, os.W_OK)):
            raise UsageError(f"-o {self.output}: cannot be written; choose another place")
        if self.output.suffix in (".gz", ".zst"):
            raise UsageError(
                f"-o {self.output}: outputs are not compressed, a run could not resume; leave {self.output.suffix} out"
            )
        for name in inputs:
            if name != "-" and any(mine.exists() and os.path.samefile(mine, name) for mine in self.all):
                raise UsageError(f"-o {self.output}: would overwrite the input {name}; name another output")

    def set_aside(self) -> Path | None:
        """Rename what a run left, keeping all of it. Returns the output's new name, or None when there was nothing."""
        there = [path for path in self.all if path.exists() and (path != self.lines or path.stat().st_size)]
        if not there:
            return None
        stamp = time.strftime("%Y%m%d-%H%M%S")
        while _beside(self.output, f".before-{stamp}").exists():
            stamp += "x"
        for path in there:
            path.rename(_beside(self.output, f".before-{stamp}{path.name[len(self.output.name) :]}"))
        return _beside(self.output, f".before-{stamp}")


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
