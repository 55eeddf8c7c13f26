"""Reads the files of a run, or of two that are compared, once: figures, and a row for each rollout and failure."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brimful.errors import InputError, UsageError
from brimful.run.output.paths import OutputFormat, RunPaths
from brimful.run.output.records import load_line
from brimful.run.output.sidecar import Sidecar
from brimful.run.report.columns import Cells, Column
from brimful.run.report.figures import RunFigures
from brimful.runtime.json_bytes import decode

_OWN = ("input", "sweep", "hook")
"""Objects of a record whose fields are columns."""
_Request = tuple[int, int]
"""Line, and combination of a sweep."""


@dataclass(frozen=True)
class Run:
    """What the page shows of a run. Texts stay in the files."""

    figures: RunFigures
    other: RunFigures | None
    """Of the run that it is compared with."""
    cells: Cells
    sources: tuple[Path, ...]
    """Rollouts and failures of the run, then those of the other: ``cells.source`` is an index of it."""
    has_prompts: bool
    """Whether all rollouts of the first run hold their prompt (``--keep prompt``)."""


def read_run(output: Path, other: Path | None = None) -> Run:
    """Raises UsageError if a path is not a run's output, InputError naming a line that is not a record of one."""
    cells = Cells()
    first = _Reader(output, cells, 0, {} if other else None)
    first.read()
    if other is None:
        cells.arrange()
        first.figures.add_lines(cells, 0)
        return Run(first.figures, None, cells, first.files, first.has_prompts)
    second = _Reader(other, cells, 1, first.lines)
    second.read()
    digests = array("I", (*first.digests, *second.digests))
    cells.arrange(digests)
    for run, reader in enumerate((first, second)):
        reader.figures.add_lines(cells, run)
    cells.columns |= _comparison(cells, digests)
    return Run(first.figures, second.figures, cells, first.files + second.files, first.has_prompts)


def check_output(output: Path) -> None:
    """Raises UsageError where ``output`` is a directory: also ``.``, which is what an empty name becomes."""
    if output.is_dir():
        raise UsageError(f"{output}: is a directory; name the output of a run, as you gave it with -o")


class _Reader:
    """Adds one run's records to ``cells``. ``lines``: the request of each id, where two runs are joined by ids."""

    def __init__(self, output: Path, cells: Cells, run: int, lines: dict[str, _Request] | None) -> None:
        check_output(output)
        sidecar = Sidecar.load(RunPaths(output).sidecar)
        paths = RunPaths(output, OutputFormat.recorded(sidecar and sidecar.parameters.get("format")))
        if not paths.rollouts.exists() and not paths.failures.exists():
            missing = paths.rollouts if output.exists() else output
            raise UsageError(f"{missing}: no such file; name the output of a run, as you gave it with -o")
        self.files = paths.rollouts, paths.failures
        self.figures = RunFigures(name=output.name, sidecar=sidecar)
        self.lines = lines
        self.digests: list[int] = []
        """Of the text of each row; 0 for failures."""
        self.has_prompts = True
        self._cells, self._run = cells, run

    def read(self) -> None:
        failures: dict[_Request, list[tuple[int, dict[str, Any]]]] = {}
        for number, offset, record in _records(self.files[1]):
            try:
                kept = {name: value for name, value in record.items() if name not in ("request", "message")}
                failures.setdefault(self._request(record), []).append((offset, kept))
            except (TypeError, ValueError):
                raise _no_record(self.files[1], number) from None
        there: dict[_Request, set[tuple[int, int]]] = {}
        for number, offset, record in _records(self.files[0]):
            try:
                self.figures.add(record)
                request = self._request(record)
                pair = int(record["prompt_index"]), int(record["choice_index"])
                self.has_prompts &= bool(record.get("prompt") or record.get("messages"))
                if request in failures:
                    there.setdefault(request, set()).add(pair)
                self._add(request, pair, record, offset, 0, _values(record))
            except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
                raise _no_record(self.files[0], number) from None
        for request, records in failures.items():
            self._add_failures(request, records, there.get(request, set()))
        if not self.figures.counts.rollouts and not self.figures.failed_lines:
            raise InputError(f"{self.files[0]}: holds no rollouts yet; sample some with brimful run")

    def _add_failures(
        self, request: _Request, records: list[tuple[int, dict[str, Any]]], there: set[tuple[int, int]]
    ) -> None:
        """A row for each rollout that failed and is not ``there``. Of two records of a rollout the newer one counts."""
        missing: dict[tuple[int, int], tuple[int, dict[str, Any]]] = {}
        for offset, record in records:
            wanted = [tuple(pair) for pair in record.get("wanted") or ()]
            free = next(choice for choice in range(len(there) + 1) if (0, choice) not in there)
            missing |= {pair: (offset, record) for pair in wanted or [(0, free)] if pair not in there}
        if missing:
            self.figures.add_failure(next(iter(missing.values()))[1], len(missing))
        for pair, (offset, record) in sorted(missing.items()):
            values = {"cause": str(record.get("cause")), "attempts": record.get("attempts"), **_own(record)}
            self._add(request, pair, record, offset, 1, values)

    def _add(
        self,
        request: _Request,
        pair: tuple[int, int],
        record: Mapping[str, Any],
        offset: int,
        failed: int,
        values: dict[str, Any],
    ) -> None:
        if self.lines is not None:
            values["run"] = "AB"[self._run]
            text = str(record.get("text"))
            self.digests.append(0 if failed else zlib.crc32(text.encode("utf-8", "surrogatepass")))
        (line, combination), (prompt, choice) = request, pair
        place = (line, prompt, combination, choice)
        self._cells.add(place, record.get("of"), 2 * self._run + failed, offset, values)

    def _request(self, record: Mapping[str, Any]) -> _Request:
        """Of two runs, those with the same id have the same: the second's new ids follow the first's lines."""
        line, combination = int(record.get("line") or 0), int(record.get("sweep_index") or 0)
        if self.lines is None:
            return line, combination
        if self._run == 0:
            return self.lines.setdefault(str(record.get("id")), (line, combination))
        return self.lines.setdefault(str(record.get("id")), ((1 << 40) + line, combination))


def _values(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a rollout is filtered by, in the order of the page."""
    return {
        "finish": str(record["finish_reason"]),
        "model": str(record.get("asked_model") or record.get("model")),
        "chars": len(record["text"]),
        "tokens": (record.get("usage") or {}).get("completion_tokens"),
        "seconds": float(record["provider_s"]),
        "attempts": int(record["attempts"]),
        "tries": record.get("tries"),
        **_own(record),
    }


def _own(record: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that the researcher's own file, sweep and hook brought: ``input.NAME``, …"""
    found: dict[str, Any] = {}
    for group in _OWN:
        fields = record.get(group)
        if isinstance(fields, dict):
            found |= {f"{group}.{name}": value for name, value in fields.items()}
    return found


def _comparison(cells: Cells, digests: array[int]) -> dict[str, Column]:
    """The column ``change``: what became of a rollout from one run to the other."""
    change = Column()
    pairs: dict[tuple[int, int], dict[int, int]]
    for rows in cells.groups():
        pairs = {}
        for row in rows:
            pairs.setdefault((cells.combination[row], cells.choice[row]), {})[cells.source[row] // 2] = row
        for row in rows:
            change.set(row, _change(pairs[cells.combination[row], cells.choice[row]], cells.source, digests))
    return {"change": change}


def _change(pair: Mapping[int, int], source: array[int], digests: array[int]) -> str:
    if len(pair) == 1:
        return "only in A" if 0 in pair else "only in B"
    failed = [letter for run, letter in enumerate("AB") if source[pair[run]] % 2]
    if failed:
        return "failed in both" if len(failed) == 2 else f"failed in {failed[0]}"
    return "same text" if digests[pair[0]] == digests[pair[1]] else "other text"


def _records(path: Path) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Number, offset and record of each line but an incomplete last one: the run may still write it."""
    if not path.exists():
        return
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                record = parse_record(line, f"{path}:{number}")
            except InputError:
                if not line.endswith(b"\n"):
                    return
                raise
            yield number, offset, record
            offset += len(line)


def parse_record(line: bytes, where: str) -> dict[str, Any]:
    """Raises InputError where the line is no JSON object."""
    try:
        record = decode(line)
    except (ValueError, RecursionError):
        record = None
    return record if isinstance(record, dict) else load_line(line, where)


def _no_record(path: Path, number: int) -> InputError:
    return InputError(f"{path}:{number}: is not a record of a run; name the output of one")
