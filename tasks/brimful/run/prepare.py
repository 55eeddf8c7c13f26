"""Checks a run before it starts: its options, its output with what earlier executions left in it, its whole input."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from brimful.errors import UsageError
from brimful.packing.request_size import lacks_max_tokens
from brimful.packing.units import Unit
from brimful.profile import Profile
from brimful.run.checks.rejections import Rejections
from brimful.run.display.stats import Counts
from brimful.run.files import RunFiles
from brimful.run.input.budget import Budget, no_price
from brimful.run.input.changes import InputChanges
from brimful.run.input.feed import Feed
from brimful.run.input.line_pace import LinePace
from brimful.run.input.line_sets import Ranges
from brimful.run.input.reader import BadLine, Entry
from brimful.run.input.survey import Survey, survey
from brimful.run.input.sweep.sweep import overridden_notes
from brimful.run.options import RunOptions
from brimful.run.output.done_index import DoneIndex
from brimful.run.output.errors_file import ErrorsFile
from brimful.run.output.jsonl import Sink, StandardOutput
from brimful.run.output.paths import Order, OutputFormat, RunPaths
from brimful.words.counted import counted

_SAY_EVERY = 200_000  # lines


@dataclass
class Prepared:
    """A run that is ready to start or to resume."""

    options: RunOptions
    profile: Profile
    sink: Sink
    done: DoneIndex
    counts: Counts
    files: RunFiles | None = None
    """None: the run writes to standard output."""
    changes: InputChanges | None = None
    survey: Survey | None = None
    """None: the input can be read only once."""
    left: int = 0
    """Requests to ask in this try, as far as the survey could count them."""
    notes: list[str] = field(default_factory=list)
    """Messages for the user."""
    settled: Callable[[], Awaitable[bool]] | None = None
    """Waits until all that was delivered is checked; False: some of it is not. None: nothing is checked."""
    unused: bool = False
    """The input turned out to be empty: nothing is kept of the try."""

    @cached_property
    def run(self) -> str:
        """The run's id."""
        return self.files.sidecar.run if self.files is not None else secrets.token_hex(8)

    @property
    def paths(self) -> RunPaths | None:
        return self.files.paths if self.files is not None else None

    @property
    def errors(self) -> ErrorsFile | None:
        return self.files.errors if self.files is not None else None

    @cached_property
    def rejections(self) -> Rejections:
        """Rollouts that were sampled and not accepted."""
        return self.files.rejections if self.files is not None else Rejections(None, sweep=self.options.read.sweep)

    async def sync(self) -> bool:
        """Make what was written so far survive a power loss. False: some of what was delivered is not written yet.

        Raises FleetError.
        """
        settled = await self.settled() if self.settled is not None else True
        if self.files is not None:
            await asyncio.to_thread(self.files.sync)
        return settled

    @property
    def complete(self) -> bool:
        """Whether nothing is left to ask, as far as that is known."""
        return self.survey is not None and self.files is not None and not self.left

    def feed(self, on_bad: Callable[[BadLine], None], say: Callable[[str], None] = lambda text: None) -> Feed:
        return Feed(
            self.options.read,
            self.profile,
            strict=self.options.strict,
            retry_errors=self.options.retry_errors,
            done=self.done,
            errors=self.errors,
            changes=self.changes,
            duplicates=self.survey.duplicates if self.survey is not None else None,
            budget=self._budget(),
            pace=LinePace(self.options.pace) if self.options.pace is not None else None,
            on_bad=on_bad,
            say=say,
            store=self.files.digests.store if self.files is not None else lambda: None,
        )

    def _budget(self) -> Budget:
        options = self.options
        budget = Budget(options.budget_tokens, money=options.budget, profile=self.profile, batch=options.batch)
        budget.count(self.counts.models_with(self.rejections.counts))
        return budget

    def close(self) -> None:
        if self.files is not None:
            self.files.close(unused=self.unused)


def prepare(options: RunOptions, profile: Profile, say: Callable[[str], None] = lambda text: None) -> Prepared:
    """``say`` reports progress with a large input.

    Raises UsageError and InputError, each naming what is wrong, where, and the way out.
    """
    options.read.check()
    if options.budget is not None:
        for each in options.read.sweep.combinations:
            model = each.get("model") or options.read.defaults.get("model", profile.model)
            if model is not None and profile.price(str(model)) is None:
                raise no_price(str(model))
    if options.to_stdout:
        return _to_stdout(options, profile)
    files = RunFiles(options, profile)
    try:
        if files.discard_failures:
            options = replace(options, retry_errors=False)
        changes = InputChanges(
            files.digests, Ranges(files.sidecar.bad_lines), files.errors, files.done, options.read.sweep
        )
        prepared = Prepared(options, profile, files.sink, files.done, files.counts, files, changes, notes=files.notes)
        prepared.notes += _check_notes(options)
        if options.read.repeatable:
            _survey(prepared, files, changes, say)
        if options.retry_errors and not len(files.errors.lines):
            prepared.notes.append(f"--retry-errors: no failures are recorded in {files.paths.failures}")
        return prepared
    except BaseException:
        files.close()
        raise


def _survey(prepared: Prepared, files: RunFiles, changes: InputChanges, say: Callable[[str], None]) -> None:
    """Read the whole input: count what is left, and raise InputError where it changed or nothing of it can be used."""
    options, profile = prepared.options, prepared.profile
    unpackable = 0

    def note(entry: Entry) -> None:
        nonlocal unpackable
        changes.observe(entry)
        if isinstance(entry.item, Unit):
            unpackable += lacks_max_tokens(entry.item.request, profile)
            if files.done.missing(entry.line, entry.item.request) != ():
                recorded = entry.line in files.errors.lines
                prepared.left += recorded if options.retry_errors else not recorded or entry.line in changes.corrected
        if entry.line % _SAY_EVERY == 0:
            say(f"reading the input: {entry.line:,} lines so far")

    found = prepared.survey = survey(options.read, profile, strict=options.strict, note=note)
    if (error := changes.error(at_end=found.at_end)) is not None:
        if files.continued:
            raise error
        files.restart()
    found.check(options.strict)
    notes, shown = prepared.notes, found.faults[:3]
    if changes.added:
        notes.append(f"{counted(changes.added, 'line')} added to the end of the input since the last try")
    if found.bad:
        notes.extend(f"{fault} (recorded in {files.paths.errors})" for fault in shown)
    if found.bad > len(shown):
        notes.append(f"and {counted(found.bad - len(shown), 'more bad line')}: see {files.paths.errors}")
    notes += _field_notes(found, options, profile) + overridden_notes(found.overridden)
    if unpackable > 1 and options.pack != "off":
        notes.append(
            f"{unpackable:,} lines set no max_tokens, and {profile.name} takes such prompts one a request: they are "
            "not packed (--max-tokens N)"
        )


def _field_notes(found: Survey, options: RunOptions, profile: Profile) -> list[str]:
    unknown, lacking = found.unknown.notes(3), found.carried.lacks(options.keep.names)
    return [
        *found.notes,
        *(["; ".join(unknown)] if unknown else []),
        *found.carried.notes(profile),
        *([f"--keep: no line has {' or '.join(map(repr, lacking))}"] if lacking else []),
    ]


def _check_notes(options: RunOptions) -> list[str]:
    checks, fields = options.checks, options.read.defaults
    if checks is None or checks.tries == 1:
        return []
    vain = "so asking again for a rejected one may be in vain"
    if fields.get("temperature") == 0:
        return [f"--temperature 0 gives the same text again, {vain}"]
    if options.rehearse and "seed" not in fields:
        return [f"the mock gateway gives the same text again unless there is a --seed, {vain}"]
    return []


def _to_stdout(options: RunOptions, profile: Profile) -> Prepared:
    for wrong, name in (
        (options.form is not OutputFormat.ROLLOUTS, f"--format {options.form.value}"),
        (options.order is Order.INPUT, "--order input"),
        (options.retry_errors, "--retry-errors"),
        (options.fresh, "--fresh"),
        (options.checks is not None and options.checks.keep_rejected, "--keep-rejected"),
    ):
        if wrong:
            raise UsageError(f"{name} needs a file, which standard output is not: name one with -o")
    found = survey(options.read, profile, strict=options.strict) if options.read.repeatable else None
    notes = _check_notes(options)
    if found is not None:
        found.check(options.strict)
        notes += _field_notes(found, options, profile)
    return Prepared(options, profile, StandardOutput(), DoneIndex(), Counts(), survey=found, notes=notes)
