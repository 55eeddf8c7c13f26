"""A run's files: reads what earlier executions of the command left in them, and writes what this one samples."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from brimful.errors import FleetError, InputError, UsageError
from brimful.profile import Profile
from brimful.run.checks.rejections import Rejections
from brimful.run.display.stats import Counts
from brimful.run.display.summary import Summary
from brimful.run.input.changes import LineDigests
from brimful.run.input.recorded import as_record
from brimful.run.input.survey import Survey
from brimful.run.options import RunOptions
from brimful.run.output.convert import check_format, convert
from brimful.run.output.done_index import DoneIndex
from brimful.run.output.errors_file import ErrorsFile
from brimful.run.output.jsonl import RecordFile, mend, scan
from brimful.run.output.paths import Order, RunPaths, naming_place
from brimful.run.output.sidecar import Sidecar
from brimful.words.counted import counted

_LARGE = 100 << 20  # bytes of a rollouts file whose conversion takes a while
_NOTE_S = 5.0
_BATCH = 1000  # records written at once


class RunFiles:
    """Opens an output's files under a lock: one run at a time writes an output."""

    def __init__(self, options: RunOptions, profile: Profile) -> None:
        """Raises UsageError and InputError naming what is wrong, where, and the way out."""
        self._read = options.read
        self.paths = paths = RunPaths(Path(options.output), options.form)
        with naming_place(paths.output):
            self._open(options, profile)

    def _open(self, options: RunOptions, profile: Profile) -> None:
        paths = self.paths
        paths.check([source.path for source in options.read.sources])
        check_format(paths)
        self.notes: list[str] = []
        """Messages for the user."""
        if paths.suffix in (".json", ".txt"):
            self.notes.append(f"{paths.output} gets one JSON object a line, as a .jsonl file does")
        self.sink = RecordFile(paths.rollouts)
        self._sweep = options.read.sweep
        self.errors = ErrorsFile(paths.failures, self._sweep)
        keep_texts = options.checks is not None and options.checks.keep_rejected
        self.rejections = Rejections(paths.rejected, texts=keep_texts, sweep=self._sweep)
        self.done, self.counts = DoneIndex(), Counts()
        self.digests = LineDigests(paths.lines)
        """Also the lock."""
        self._target_lock: LineDigests | None = None
        self._aside: Path | None = None
        """Where ``--fresh`` has put the old output, from where it comes back if the run does not begin."""
        try:
            self._lock_target()
            moved = paths.set_aside() if options.fresh else None
        except BaseException:
            self._unlock()
            raise
        if options.fresh:
            self._unlock()
            self.digests = LineDigests(paths.lines)
        self._aside = moved
        results = (paths.output, paths.rollouts, paths.kept, paths.errors, paths.failures, paths.rejected)
        self.continued = any(path.exists() for path in results)
        """Records of an earlier try stay: the lines that they came from must not have changed."""
        self._noted_at = -_NOTE_S
        self.discard_failures = False
        """The recorded failures are of other parameters, with which nothing was sampled."""
        try:
            form = paths.suffix[1:] if paths.table else options.form.value
            self.sidecar = self._load_sidecar({**options.parameters(profile), "format": form})
            self._load_records()
        except BaseException:
            self._unlock()
            raise

    def _lock_target(self) -> None:
        """Lock what OUT's name points to as well: through a link, two names are one file."""
        if self.paths.output.is_symlink():  # its target need not exist yet
            target = RunPaths(Path(os.path.realpath(self.paths.output)), self.paths.form)
            self._target_lock = LineDigests(target.lines)
        self.sink.lock()

    def _load_sidecar(self, parameters: dict[str, Any]) -> Sidecar:
        paths = self.paths
        sidecar = Sidecar.load(paths.sidecar)
        if sidecar is None:
            self._check_foreign()
            return Sidecar.new(parameters)
        changes = sidecar.changes(parameters)
        if not changes:
            return sidecar
        if any(path.exists() and path.stat().st_size for path in (paths.output, paths.rollouts, paths.kept)):
            raise UsageError(
                f"{paths.output} was sampled with other parameters: {'; '.join(changes)}. Use the same ones, name "
                "another output with -o, or start over with --fresh (the old output is kept under another name)"
            )
        self.digests.forget()
        self.discard_failures, self.continued = paths.failures.exists(), False
        return Sidecar.new(parameters)

    def _load_records(self) -> None:
        rollouts = self.paths.rollouts
        if torn := self.sink.mend():
            self.notes.append(
                f"{rollouts} ended in an incomplete line ({counted(torn, 'byte')}): that rollout is fetched or sampled "
                "again"
            )
        if rollouts.exists():
            self._scan(rollouts)
        if self.paths.kept.exists():
            self._take_kept(self.paths.kept)
        if not self.discard_failures:
            self.errors.load(self.done)
            self.rejections.load(self.done)

    def _check_foreign(self) -> None:
        """An output without a sidecar is a run's that lost it, or somebody else's file."""
        paths = self.paths
        if paths.converted:
            if paths.output.exists() and not paths.rollouts.exists():
                raise UsageError(
                    f"{paths.output} exists, but the rollouts file to resume from, {paths.rollouts}, does not: name "
                    "another output with -o, or start over with --fresh (the old output is kept under another name)"
                )
        elif paths.output.exists() and paths.output.stat().st_size:
            self.notes.append(
                f"{paths.sidecar.name} is missing: resuming from {paths.output} alone; input changes go unnoticed"
            )

    def _scan(self, rollouts: Path) -> None:
        repeated = sum(not new for _, new in self._new_records(rollouts))
        if repeated:
            self.notes.append(f"{rollouts} holds {counted(repeated, 'rollout')} twice (were files joined?), left as is")

    def _take_kept(self, kept: Path) -> None:
        """Append to the rollouts file what a try kept, when that file was removed or replaced under it."""
        mend(kept)
        added = 0
        records = self._new_records(kept)
        while batch := list(islice(records, _BATCH)):
            missing = [record for record, new in batch if new]
            self.sink.write(missing)
            added += len(missing)
        self.sink.sync()
        kept.unlink()
        self.notes.append(f"{counted(added, 'rollout')} kept in {kept} now in {self.paths.rollouts}")

    def _new_records(self, rollouts: Path) -> Iterator[tuple[dict[str, Any], bool]]:
        """Every record, counted, and whether it was new. A repeated record is counted if the file is the output."""
        for number, (record, _) in enumerate(scan(rollouts), 1):
            try:
                line = self._sweep.place_of(record, f"{rollouts}:{number}")
                place = line, int(record["prompt_index"]), int(record["choice_index"])
                new = self.done.add(*place, record["of"] or 1 << 60)
                if new or rollouts == self.paths.rollouts:
                    self.counts.add(record)
            except (AttributeError, KeyError, TypeError, ValueError):
                raise InputError(
                    f"{rollouts}:{number}: is not a record of a run, so nothing is added; name another output with -o"
                ) from None
            yield record, new

    def restart(self) -> None:
        """Give the run a new id: its input has changed, and nothing was sampled from the old one."""
        self.sidecar = Sidecar.new(self.sidecar.parameters)

    def begin(self, survey: Survey | None, profile: Profile) -> str | None:
        """Write the sidecar: from here on the run exists on disk. Returns a message for the user. Raises FleetError."""
        if survey is not None:
            self.sidecar.bad_lines = survey.bad_lines.ranges
        self.sidecar.limits = {"slots": profile.slots, "starts": profile.starts, "window_s": profile.window_s}
        self.sidecar.tries.append({"started": round(time.time(), 3), "read": as_record(self._read)})
        if self.discard_failures:
            with naming_place(self.paths.output):
                self.errors.discard()
                self.rejections.discard()
        self.digests.store()
        self.sidecar.store(self.paths.sidecar)
        aside, self._aside = self._aside, None
        return f"the old output is kept as {aside}" if aside is not None and aside.exists() else None

    def lost(self) -> str | None:
        """What became of the output if it is no longer the file that is being written; None while it is in its place.

        Cheap enough for each flush. From then on records go to ``OUT.kept``. Raises FleetError if they cannot.
        """
        return next(filter(None, (file.check() for file in self._files)), None)

    @property
    def kept(self) -> str | None:
        """Where records went instead of the output; None while it is in its place."""
        return ", ".join(str(file.kept) for file in self._files if file.lost) or None

    @property
    def _files(self) -> list[RecordFile]:
        return [self.sink, self.errors.file, self.rejections.file]

    @property
    def unmetered(self) -> int:
        """Tokens of attempts without ``usage``, of all tries so far."""
        return max((int(one.get("unmetered_tokens") or 0) for one in self.sidecar.tries), default=0)

    def note_unmetered(self, tokens: int) -> None:
        """Keep the figure for the next try, every few seconds while it changes: this process may be killed."""
        current = self.sidecar.tries[-1]
        now = time.monotonic()
        if current.get("unmetered_tokens", 0) != tokens and now - self._noted_at >= _NOTE_S:
            self._noted_at = now
            current["unmetered_tokens"] = tokens
            with contextlib.suppress(FleetError):  # a full disk ends the run elsewhere
                self.sidecar.store(self.paths.sidecar)

    def sync(self) -> None:
        """Make the records written so far survive a power loss. Blocks. Raises FleetError."""
        for file in self._files:
            file.sync()

    def convert(self, order: Order, say: Callable[[str], None]) -> None:
        """Put output and errors in their final form, if they are in their place. Raises FleetError."""
        paths, in_order = self.paths, order is Order.INPUT
        self.sink.close()
        if self.kept is not None:
            return
        with naming_place(paths.output):
            self.errors.load(self.done)
        if (in_order or paths.converted) and paths.rollouts.exists() and paths.rollouts.stat().st_size > _LARGE:
            say(f"writing {paths.output}")
        with naming_place(paths.output):
            convert(paths, input_order=in_order)

    def end(self, summary: Summary, *, failed: bool) -> None:
        """Write the summary to the sidecar. Raises FleetError, unless the try has ``failed``: of the same full disk."""
        figures = {name: value for name, value in summary.as_json().items() if name not in ("next", "output")}
        allowed = summary.allowed
        self.sidecar.limits = {
            "slots": allowed["slots"],
            "starts": allowed["starts_per_window"],
            "window_s": allowed["window_s"],
        }
        if summary.learnt:
            self.sidecar.limits["learnt"] = "; ".join(summary.learnt)
        ended = {"ended": round(time.time(), 3), "summary": figures, "unmetered_tokens": summary.unmetered_tokens}
        self.sidecar.tries[-1] |= ended
        try:
            self.sidecar.store(self.paths.sidecar)
        except FleetError:
            if not failed:
                raise

    def close(self, *, unused: bool = False) -> None:
        """Close the files and release the lock.

        A run that never began, or was ``unused``, leaves no file. One that never began puts the old output back.
        """
        self.errors.close()
        self.rejections.close()
        if unused and self.digests.created:
            self.paths.sidecar.unlink(missing_ok=True)
        self._unlock()

    def _unlock(self) -> None:
        self.sink.close()
        if self._aside is not None:
            self.paths.put_back(self._aside)
        if self.digests.created and not self.paths.sidecar.exists():
            self.digests.discard()
        self.digests.close()
        if (target := self._target_lock) is not None:
            self._target_lock = None
            if target.created:
                target.discard()
            target.close()
