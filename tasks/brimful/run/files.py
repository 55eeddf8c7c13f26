"""A run's files: what earlier tries left in them, and what this try writes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from brimful.errors import FleetError, InputError, UsageError
from brimful.profile import Profile
from brimful.run.display.stats import Counts
from brimful.run.display.summary import Summary
from brimful.run.input.changes import LineDigests
from brimful.run.input.survey import Survey
from brimful.run.options import RunOptions
from brimful.run.output.convert import convert
from brimful.run.output.done_index import DoneIndex
from brimful.run.output.errors_file import ErrorsFile
from brimful.run.output.jsonl import RecordFile, mend, scan
from brimful.run.output.parquet import check_parquet
from brimful.run.output.paths import Order, OutputFormat, RunPaths
from brimful.run.output.sidecar import Sidecar

_LARGE = 100 << 20  # bytes of a rollouts file whose conversion takes a while


class RunFiles:
    """Opens an output's files under a lock: one run at a time writes an output."""

    def __init__(self, options: RunOptions, profile: Profile) -> None:
        """Raises UsageError and InputError naming what is wrong, where, and the way out."""
        self.paths = paths = RunPaths(Path(options.output), options.form)
        paths.check([source.path for source in options.read.sources])
        if paths.parquet:
            if options.form is not OutputFormat.ROLLOUTS:
                raise UsageError(
                    f"--format {options.form.value} is not a table; name an output that does not end in .parquet"
                )
            check_parquet()
        self.notes: list[str] = []
        """Messages for the user."""
        self.sink = RecordFile(paths.rollouts)
        self.errors = ErrorsFile(paths.failures)
        self.done, self.counts = DoneIndex(), Counts()
        self.digests = LineDigests(paths.lines)
        """Also the lock."""
        if options.fresh:
            self._set_aside()
        results = (paths.output, paths.rollouts, paths.errors, paths.failures)
        self.continued = any(path.exists() for path in results)
        """Records of an earlier try stay: the lines that they came from must not have changed."""
        self.discard_failures = False
        """The recorded failures are of other parameters, with which nothing was sampled."""
        try:
            form = "parquet" if paths.parquet else options.form.value
            self.sidecar = self._load_sidecar({**options.parameters(profile), "format": form})
            self._load_records()
        except BaseException:
            self._unlock()
            raise

    def _set_aside(self) -> None:
        try:
            moved = self.paths.set_aside()
        finally:
            self._unlock()
        if moved is not None and moved.exists():
            self.notes.append(f"the old output is kept as {moved}")
        self.digests = LineDigests(self.paths.lines)

    def _load_sidecar(self, parameters: dict[str, Any]) -> Sidecar:
        paths = self.paths
        sidecar = Sidecar.load(paths.sidecar)
        if sidecar is None:
            self._check_foreign()
            return Sidecar.new(parameters)
        changes = sidecar.changes(parameters)
        if not changes:
            return sidecar
        if any(path.exists() and path.stat().st_size for path in (paths.output, paths.rollouts)):
            raise UsageError(
                f"{paths.output} was sampled with other parameters: {'; '.join(changes)}. Use the same ones, name "
                "another output with -o, or start over with --fresh (the old output is kept under another name)"
            )
        self.digests.forget()
        self.discard_failures, self.continued = paths.failures.exists(), False
        return Sidecar.new(parameters)

    def _load_records(self) -> None:
        rollouts = self.paths.rollouts
        if torn := mend(rollouts):
            self.notes.append(
                f"{rollouts} ended in an incomplete line ({torn:,} bytes): that rollout is fetched or sampled again"
            )
        if rollouts.exists():
            self._scan(rollouts)
        if not self.discard_failures:
            self.errors.load(self.done)

    def _check_foreign(self) -> None:
        """An output without a sidecar is a run's that lost it, or somebody else's file."""
        paths = self.paths
        if paths.converted:
            if paths.output.exists() and not paths.rollouts.exists():
                raise UsageError(
                    f"{paths.output} exists and is not of a run that could be resumed; name another output, or --fresh"
                )
        elif paths.output.exists() and paths.output.stat().st_size:
            self.notes.append(
                f"{paths.sidecar.name} is missing: resuming from {paths.output} alone; input changes go unnoticed"
            )

    def _scan(self, rollouts: Path) -> None:
        repeated = 0
        for number, (record, _) in enumerate(scan(rollouts), 1):
            try:
                place = int(record["line"]), int(record["prompt_index"]), int(record["choice_index"])
                repeated += not self.done.add(*place, record["of"] or 1 << 60)
                self.counts.add(record)
            except (AttributeError, KeyError, TypeError, ValueError):
                raise InputError(
                    f"{rollouts}:{number}: is not a record of a run, so nothing is added; name another output with -o"
                ) from None
        if repeated:
            self.notes.append(f"{rollouts} holds {repeated:,} rollouts twice (were files joined?); they are left as is")

    def restart(self) -> None:
        """Give the run a new id: its input has changed, and nothing was sampled from the old one."""
        self.sidecar = Sidecar.new(self.sidecar.parameters)

    def begin(self, survey: Survey | None, profile: Profile) -> None:
        """Write the sidecar: from here on the run exists on disk. Raises FleetError."""
        if survey is not None:
            self.sidecar.bad_lines = survey.bad_lines.ranges
        self.sidecar.limits = {"slots": profile.slots, "starts": profile.starts, "window_s": profile.window_s}
        self.sidecar.tries.append({"started": round(time.time(), 3)})
        if self.discard_failures:
            self.errors.discard()
        self.digests.store()
        self.sidecar.store(self.paths.sidecar)

    def sync(self) -> None:
        """Make the records written so far survive a power loss. Blocks. Raises FleetError."""
        self.sink.sync()
        self.errors.sync()

    def convert(self, order: Order, say: Callable[[str], None]) -> None:
        """Put output and errors in their final form. Raises FleetError."""
        paths, in_order = self.paths, order is Order.INPUT
        self.sink.close()
        self.errors.load(self.done)
        if (in_order or paths.converted) and paths.rollouts.exists() and paths.rollouts.stat().st_size > _LARGE:
            say(f"writing {paths.output}")
        convert(paths, input_order=in_order)

    def end(self, summary: Summary, *, failed: bool) -> None:
        """Write the summary to the sidecar. Raises FleetError, unless the try has ``failed``: of the same full disk."""
        figures = {name: value for name, value in summary.as_json().items() if name not in ("next", "output")}
        self.sidecar.tries[-1] |= {"ended": round(time.time(), 3), "summary": figures}
        try:
            self.sidecar.store(self.paths.sidecar)
        except FleetError:
            if not failed:
                raise

    def close(self, *, unused: bool = False) -> None:
        """Close the files and release the lock. A run that never began, or was ``unused``, leaves no file."""
        self.sink.close()
        self.errors.close()
        if unused and self.digests.created:
            self.paths.sidecar.unlink(missing_ok=True)
        self._unlock()

    def _unlock(self) -> None:
        if self.digests.created and not self.paths.sidecar.exists():
            self.digests.discard()
        self.digests.close()
