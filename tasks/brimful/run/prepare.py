"""All that is looked at before a run starts: input, output, what earlier tries left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from brimful.errors import InputError, UsageError
from brimful.packing.request_size import lacks_max_tokens
from brimful.packing.units import Unit
from brimful.profile import Profile
from brimful.run.display.stats import Counts
from brimful.run.input.changes import Edits, LineDigests
from brimful.run.input.feed import Budget, Feed
from brimful.run.input.reader import BadLine, Entry
from brimful.run.input.survey import Survey, survey
from brimful.run.options import RunOptions
from brimful.run.output.done_index import Tally
from brimful.run.output.errors_file import ErrorsFile
from brimful.run.output.jsonl import LedgerFile, Sink, StandardOutput, mend, scan
from brimful.run.output.parquet import check_parquet
from brimful.run.output.paths import Order, OutputFormat, RunPaths
from brimful.run.output.sidecar import Ranges, Sidecar

_LOOKED = 200_000  # lines between two words about it


@dataclass
class Prepared:
    """A run ready to go on from where it stands."""

    options: RunOptions
    profile: Profile
    sidecar: Sidecar
    tally: Tally
    counts: Counts
    sink: Sink
    paths: RunPaths | None = None
    """None: to standard output, as are the next three."""
    digests: LineDigests | None = None
    errors: ErrorsFile | None = None
    edits: Edits | None = None
    survey: Survey | None = None
    """None: the input can be read but once."""
    left: int = 0
    """Requests that this try is to ask, where the input could be looked through."""
    notes: list[str] = field(default_factory=list)
    """What the user should know."""
    anew: bool = False
    """The failures on record are of other parameters, with which nothing was sampled."""
    unused: bool = False
    """The input turned out to be empty: nothing is kept of the try."""

    @property
    def complete(self) -> bool:
        """Whether nothing is left to ask (as far as that is known)."""
        return self.survey is not None and self.paths is not None and not self.left

    def feed(self, outstanding: frozenset[tuple[int, int, int]], on_bad: Callable[[BadLine], None]) -> Feed:
        return Feed(
            self.options.read,
            self.profile,
            strict=self.options.strict,
            retry_errors=self.options.retry_errors,
            tally=self.tally,
            errors=self.errors,
            edits=self.edits,
            surveyed=self.survey is not None,
            budget=Budget(self.options.budget_tokens, self.counts.tokens),
            outstanding=outstanding,
            on_bad=on_bad,
            store=self.digests.store if self.digests else lambda: None,
        )

    def begin(self) -> None:
        """From here on the run exists on disk."""
        if self.paths is None or self.digests is None:
            return
        if self.survey is not None:
            self.sidecar.bad_lines = self.survey.bad_lines.ranges
        profile = self.profile
        self.sidecar.limits = {"slots": profile.slots, "starts": profile.starts, "window_s": profile.window_s}
        self.sidecar.tries.append({"started": round(time.time(), 3)})
        if self.anew and self.errors is not None:
            self.errors.discard()
        self.digests.store()
        self.sidecar.store(self.paths.sidecar)

    def close(self) -> None:
        """Release the lock. A run that never began leaves no file."""
        self.sink.close()
        if self.errors is not None:
            self.errors.close()
        if self.digests is not None and self.paths is not None:
            if self.unused and self.digests.created:
                self.paths.sidecar.unlink(missing_ok=True)
            _leave(self.digests, self.paths)


def prepare(options: RunOptions, profile: Profile, say: Callable[[str], None] = lambda text: None) -> Prepared:
    """``say``: what goes on, where it takes long.

    Raises UsageError and InputError, each naming what is wrong, where, and the way out.
    """
    options.read.check()
    if options.to_stdout:
        return _to_stdout(options, profile)
    form = options.form
    paths = RunPaths(Path(options.output), form)
    paths.check([source.path for source in options.read.sources])
    if paths.parquet:
        if form is not OutputFormat.ROLLOUTS:
            raise UsageError(f"--format {form.value} is no table; name an output that does not end in .parquet")
        check_parquet()
    digests = LineDigests(paths.lines)
    notes: list[str] = []
    try:
        if options.fresh:
            moved = paths.set_aside()
            digests.close()
            if moved is not None and moved.exists():
                notes.append(f"what there was is kept as {moved}")
            digests = LineDigests(paths.lines)
        return _resumed(options, profile, paths, digests, notes, say)
    except BaseException:
        _leave(digests, paths)
        raise


def _resumed(
    options: RunOptions,
    profile: Profile,
    paths: RunPaths,
    digests: LineDigests,
    notes: list[str],
    say: Callable[[str], None],
) -> Prepared:
    parameters = {**options.parameters(profile), "format": "parquet" if paths.parquet else options.form.value}
    sidecar = Sidecar.load(paths.sidecar)
    results = (paths.output, paths.ledger, paths.errors, paths.error_ledger)
    sampled = any(path.exists() for path in results)
    anew = False
    if sidecar is None:
        _check_foreign(paths, notes)
        sidecar = Sidecar.new(parameters)
    elif (changes := sidecar.changes(parameters)) and not any(map(_holds, (paths.output, paths.ledger))):
        # Nothing is there that could be mixed with the new; what failed is asked again.
        sidecar = Sidecar.new(parameters)
        digests.forget()
        anew, sampled = paths.error_ledger.exists(), False
        options = replace(options, retry_errors=False)
    elif changes:
        raise UsageError(
            f"{paths.output} was sampled with other parameters: {'; '.join(changes)}. Ask as before, name another "
            "output with -o, or begin anew with --fresh (what there is stays, under another name)"
        )
    if torn := mend(paths.ledger):
        notes.append(f"{paths.ledger} ended in a torn line ({torn:,} bytes): that rollout is fetched or sampled again")
    tally, counts = Tally(), Counts()
    _scan(paths.ledger, tally, counts, notes)
    errors = ErrorsFile(paths.error_ledger)
    if not anew:
        errors.load(tally)
    edits = Edits(digests, Ranges(sidecar.bad_lines), errors, tally)
    found, left, alone = None, 0, 0
    if options.read.repeatable:

        def note(entry: Entry) -> None:
            nonlocal left, alone
            edits.see(entry)
            alone += isinstance(entry.item, Unit) and lacks_max_tokens(entry.item.request, profile)
            if isinstance(entry.item, Unit) and tally.missing(entry.line, entry.item.request) != ():
                recorded = entry.line in errors.lines
                left += recorded if options.retry_errors else not recorded or entry.line in edits.corrected
            if entry.line % _LOOKED == 0:
                say(f"looking through the input: {entry.line:,} lines so far")

        found = survey(options.read, profile, strict=options.strict, note=note)
        if sampled or not edits.changed(at_end=found.at_end):
            edits.check(at_end=found.at_end)
        else:
            sidecar = Sidecar.new(parameters)
        found.check(options.strict)
        if edits.added:
            notes.append(f"{edits.added:,} lines came to the end of the input since the last try")
        notes.extend(f"{fault} (goes to {paths.errors})" for fault in found.faults[:3] if found.bad)
        if found.bad > len(found.faults[:3]):
            notes.append(f"and {found.bad - len(found.faults[:3]):,} more bad lines: see {paths.errors}")
        if unknown := found.unknown.notes(3):
            notes.append("; ".join(unknown))
        if alone > 1 and options.pack != "off":
            notes.append(
                f"{alone:,} lines set no max_tokens, and {profile.name} takes such prompts one a request: they are not "
                "packed (--max-tokens N)"
            )
    if options.retry_errors and not len(errors.lines):
        notes.append(f"--retry-errors: no failures are recorded in {paths.error_ledger}")
    return Prepared(
        options,
        profile,
        sidecar,
        tally,
        counts,
        LedgerFile(paths.ledger),
        paths,
        digests,
        errors,
        edits,
        found,
        left,
        notes,
        anew=anew,
    )


def _holds(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _scan(ledger: Path, tally: Tally, counts: Counts, notes: list[str]) -> None:
    if not ledger.exists():
        return
    twice = 0
    for number, (record, _) in enumerate(scan(ledger), 1):
        try:
            new = tally.add(
                int(record["line"]), int(record["prompt_index"]), int(record["choice_index"]), record["of"] or 1 << 60
            )
            counts.add(record)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise InputError(
                f"{ledger}:{number}: is not a record of a run, nothing is added to it; name another output with -o"
            ) from None
        twice += not new
    if twice:
        notes.append(f"{ledger} holds {twice:,} rollouts twice (were files joined?); they are left as they are")


def _check_foreign(paths: RunPaths, notes: list[str]) -> None:
    """An output without a sidecar: ours whose sidecar was lost, or somebody's file."""
    if paths.converted:
        if paths.output.exists() and not paths.ledger.exists():
            raise UsageError(
                f"{paths.output} exists and is not of a run that could be resumed; name another output, or --fresh"
            )
    elif paths.output.exists() and paths.output.stat().st_size:
        notes.append(f"{paths.sidecar.name} is missing: resuming from {paths.output} alone, edits of the input unseen")


def _to_stdout(options: RunOptions, profile: Profile) -> Prepared:
    for wrong, name in (
        (options.form is not OutputFormat.ROLLOUTS, f"--format {options.form.value}"),
        (options.order is Order.INPUT, "--order input"),
        (options.retry_errors, "--retry-errors"),
        (options.fresh, "--fresh"),
    ):
        if wrong:
            raise UsageError(f"{name} needs a file, which standard output is not: name one with -o")
    found = survey(options.read, profile, strict=options.strict) if options.read.repeatable else None
    if found is not None:
        found.check(options.strict)
    return Prepared(
        options, profile, Sidecar.new(options.parameters(profile)), Tally(), Counts(), StandardOutput(), survey=found
    )


def _leave(digests: LineDigests, paths: RunPaths) -> None:
    if digests.created and not paths.sidecar.exists():
        digests.discard()
    digests.close()
