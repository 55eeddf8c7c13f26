"""The prompts of a run, which its output does not hold: read again from the input, into a temporary file."""

from __future__ import annotations

import tempfile
import threading
from array import array
from bisect import bisect_left
from dataclasses import replace
from pathlib import Path
from typing import Any

from brimful.config import Settings
from brimful.errors import BrimfulError, UsageError
from brimful.packing.units import Unit
from brimful.profile import Profile, get_profile
from brimful.run.input.ids import Duplicates
from brimful.run.input.reader import Reader, ReadOptions
from brimful.run.input.recorded import from_record
from brimful.run.input.sources import Source
from brimful.run.input.sweep.sweep import Sweep
from brimful.run.output.paths import RunPaths
from brimful.run.output.sidecar import Sidecar
from brimful.run.report.reading import Run
from brimful.runtime.json_bytes import decode, encode


class Prompts:
    """Prompts by line, kept on disk. Close it to remove the file."""

    def __init__(self) -> None:
        self.note = ""
        """Why prompts are missing; empty where none is."""
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  (closed by close)
        self._lines, self._offsets = array("Q"), array("Q")
        """Lines that have prompts, and where these stand in the file."""
        self._lock = threading.Lock()

    @classmethod
    def of(cls, output: Path, run: Run, inputs: tuple[str, ...]) -> Prompts:
        """Of the run ``output``. ``inputs`` stand for the recorded input; UsageError if one of them cannot be read.

        Nothing is read where the run's records hold the prompts.
        """
        sidecar = run.figures.sidecar
        sources = tuple(map(Source, inputs))
        for source in sources:
            if not source.regular:
                raise UsageError(f"--input {source.path}: is no file; name the input that the run read")
        options = _options(sidecar, sources)
        prompts = cls()
        if run.has_prompts and not inputs:
            return prompts
        if options is None or not all(source.regular for source in options.sources):
            prompts.note = "the prompts are not shown: the run's input is not known or not there (--input FILE)"
            return prompts
        try:
            prompts._read(options, _profile(sidecar), RunPaths(output).lines)
        except BaseException as error:
            if inputs or not isinstance(error, BrimfulError):
                prompts.close()
                raise
            prompts.note = f"the prompts are not shown: {error}"
        return prompts

    def get(self, line: int) -> list[Any] | None:
        """The prompts of a line, each a string, token ids or a list of messages; None if they are not known."""
        place = bisect_left(self._lines, line)
        if place == len(self._lines) or self._lines[place] != line:
            return None
        with self._lock:
            self._file.seek(self._offsets[place])
            data = self._file.readline()
        found: list[Any] = decode(data)
        return found

    def fileno(self) -> int:
        """The descriptor of a file that holds a JSON array of prompts for each line that has some."""
        self._file.flush()
        return self._file.fileno()

    def line_at(self, offset: int) -> int:
        """The line whose prompts stand at an offset of that file."""
        return self._lines[bisect_left(self._offsets, offset)]

    def close(self) -> None:
        self._file.close()

    def _read(self, options: ReadOptions, profile: Profile, lines: Path) -> None:
        digests = array("I")
        if lines.exists():
            data = lines.read_bytes()
            digests.frombytes(data[: len(data) // 4 * 4])
        changed = end = 0
        # One combination of a sweep shows a line's prompts, and makes the places of entries the numbers of lines.
        options = replace(options, sweep=Sweep(options.sweep.combinations[:1]))
        for entry in Reader(options, profile, duplicates=Duplicates()).entries():
            known = digests[entry.line - 1] if entry.line <= len(digests) else 0
            changed += known not in (0, entry.digest)
            if isinstance(entry.item, Unit) and known in (0, entry.digest):
                self._lines.append(entry.line)
                self._offsets.append(end)
                end += self._file.write(encode(entry.item.request.prompts) + b"\n")
        if changed:
            shown = "1 prompt is" if changed == 1 else f"{changed:,} prompts are"
            self.note = f"the input has changed since the run: {shown} not shown"


def _options(sidecar: Sidecar | None, sources: tuple[Source, ...]) -> ReadOptions | None:
    for one in reversed(sidecar.tries if sidecar is not None else []):
        if one.get("read") and (options := from_record(one["read"], sources or None)):
            return options
    return ReadOptions(sources) if sources else None


def _profile(sidecar: Sidecar | None) -> Profile:
    try:
        return get_profile(str((sidecar.parameters if sidecar is not None else {}).get("provider")))
    except BrimfulError:
        return Settings.load().profile
