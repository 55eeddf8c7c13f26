"""The files of a batch's run, by the names that ``brimful run`` gives them, and how many of its lines are done."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from brimful.runtime import json_bytes

_AT_ONCE = 8 * 2**20


class RunFiles:
    """The files of a run in its batch's folder."""

    def __init__(self, folder: Path) -> None:
        self.input = folder / "input.jsonl"
        self.output = folder / "out.jsonl"
        self.errors = folder / "out.jsonl.errors.jsonl"
        self.rollouts = folder / "out.jsonl.rollouts.jsonl"
        self.failures = folder / "out.jsonl.failures.jsonl"
        self.log = folder / "run.log"
        self.pace = folder / "pace"
        """Holds the number of the last line that the run may ask for, where its caller has a limit of a minute."""
        self._sidecar = folder / "out.jsonl.run.json"

    def run_id(self) -> str | None:
        """By which Redis knows the run, without its fleet's name; None before the run has begun. Raises OSError."""
        run = self._state().get("run")
        return run if isinstance(run, str) else None

    @property
    def cancelled(self) -> bool:
        """Whether an operator has ended the last try (``brimful runs cancel``). Raises OSError."""
        tries = self._state().get("tries")
        try:
            return bool(tries[-1]["summary"]["cancelled_by"])  # type: ignore[index]
        except (LookupError, TypeError):  # the try has not ended, or no try has begun
            return False

    def _state(self) -> dict[str, Any]:
        try:
            found = json_bytes.decode(self._sidecar.read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def outdated(self) -> bool:
        """Whether there are rollouts or failures that the output files do not hold, as a killed run leaves it."""
        pairs = ((self.rollouts, self.output), (self.failures, self.errors))
        return any(_changed(made_of) > _changed(made) for made_of, made in pairs)


class Progress:
    """Counts what one execution of the run has written so far."""

    def __init__(self, files: RunFiles) -> None:
        self._rollouts = _Tail(files.rollouts)
        self._failures = _Tail(files.failures)
        self._missing: dict[int, int] = {}
        """Rollouts that lines have not got yet, once they have some."""
        self._failed: set[int] = set()
        self._completed = 0
        self._used: dict[int, int] = {}
        """Tokens of lines that are not complete."""
        self.used: dict[int, int] = {}
        """Tokens of lines that have been completed; whoever reads them empties it."""

    def read(self) -> tuple[int, int]:
        """Lines completed and failed. Blocks."""
        for record in self._rollouts.records():
            line, of = record["line"], record.get("of") or 1
            usage = record.get("usage") or {}
            tokens = (usage.get("prompt_tokens") or 0) + (usage.get("completion_tokens") or 0)
            tokens += self._used.pop(line, 0)
            missing = self._missing.pop(line, of) - 1
            if missing:
                self._missing[line], self._used[line] = missing, tokens
            else:
                self._completed += 1
                self.used[line] = tokens
        self._failed.update(record["line"] for record in self._failures.records())
        return self._completed, len(self._failed)


class _Tail:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def records(self) -> list[dict[str, Any]]:
        """Those that have been added, as whole lines."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._offset:
                    self._offset = 0  # another try has written it again, without what it samples again
                file.seek(self._offset)
                lines = file.read(_AT_ONCE).splitlines(keepends=True)
        except FileNotFoundError:
            return []
        whole = [line for line in lines if line.endswith(b"\n")]
        self._offset += sum(map(len, whole))
        try:
            return [json_bytes.decode(line) for line in whole]
        except ValueError:  # it begins within a record, for the same reason; the end counts all
            return []


def _changed(path: Path) -> int:
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0
    return found.st_mtime_ns if found.st_size else 0
