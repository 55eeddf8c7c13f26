"""Runs as text: a table with a row for each, and all that is known of one."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from brimful.cli.style import ago, paint
from brimful.dispatch.purge import StoredRun
from brimful.state.runs.entry import Asked, RunEntry, RunState
from brimful.words.counted import counted

_COLOURS: Mapping[str, str] = {
    RunState.RUNNING: "green",
    RunState.HELD: "yellow",
    RunState.STOPPING: "yellow",
    RunState.FAILED: "red",
    RunState.LOST: "red",
}
_HEAD = ("run", "state", "prompts", "failed", "rate", "started", "by", "what")


def table(entries: Sequence[RunEntry], others: Sequence[StoredRun]) -> str:
    """A row for each run; ``others`` have no entry."""
    rows = [_HEAD, *(_row(entry) for entry in entries)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD) - 1)]
    lines = []
    for row, entry in zip(rows, [None, *entries], strict=True):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        if entry is not None and (colour := _COLOURS.get(entry.state_now)):
            cells[1] = paint(cells[1], colour)
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    if not entries:
        lines = []
    lines += [f"{run.run}  no entry: {stored(run)}" for run in others]
    return "\n".join(lines)


def details(entry: RunEntry, run: StoredRun) -> str:
    """All that is known of one run, in about ten lines."""
    rate = f", {entry.rate:,.0f}/min" if entry.rate else ""
    of = f" of {entry.total:,}" if entry.total is not None else ""
    causes = ", ".join(f"{cause} {count:,}" for cause, count in entry.failures.items())
    rows = [
        ("run", entry.run),
        ("state", _state(entry)),
        ("prompts", f"{entry.done:,}{of} sampled, {entry.failed:,} failed{f' ({causes})' if causes else ''}"),
        ("rollouts", f"{entry.rollouts:,}{rate}"),
        ("tokens", f"{entry.tokens:,}"),
        ("in flight", f"{counted(entry.in_flight, 'API call')}; in Redis {stored(run)}"),
        ("started", f"{ago(time.time() - entry.started)} by {entry.user}@{entry.host}, process {entry.pid}"),
        ("last seen", f"{ago(entry.silent_s)}, brimful {entry.version or '?'}"),
        ("weight", f"{entry.weight:g}"),
        ("batch", f"{entry.batch}{f' of {entry.caller}' if entry.caller else ''}" if entry.batch else ""),
        ("input", entry.input),
        ("output", entry.output),
    ]
    return "\n".join(f"{label:10} {value}" for label, value in rows if value)


def stored(run: StoredRun) -> str:
    shards, outcomes = counted(run.shards, "shard"), counted(run.outcomes, "outcome")
    return f"{shards} without outcome, {outcomes} not collected"


def _row(entry: RunEntry) -> tuple[str, ...]:
    state = f"lost {ago(entry.silent_s)}" if entry.lost else entry.state
    total = f"/{entry.total:,}" if entry.total is not None else ""
    return (
        entry.run,
        state,
        f"{entry.done + entry.failed:,}{total}",
        f"{entry.failed:,}",
        f"{entry.rate:,.0f}/min" if entry.live else "",
        ago(time.time() - entry.started),
        entry.who,
        entry.batch or entry.output,
    )


def _state(entry: RunEntry) -> str:
    again = "the `brimful run` that began it, typed again, continues it"
    if entry.batch:
        again = "its front door goes on with it"
    if entry.lost:
        return f"lost: it has not reported for {entry.silent_s:,.0f} s; {again}"
    if entry.live:
        by = f" by {entry.asked_by}" if entry.ask and entry.asked_by else ""
        if entry.ask == Asked.HOLD and entry.state == RunState.RUNNING:
            return f"running; asked{by} to hold"
        return entry.state + (by if entry.state == RunState.HELD else "")
    code = f", exit code {entry.exit_code}" if entry.exit_code is not None else ""
    why = f" ({entry.ended_by})" if entry.ended_by and entry.state == RunState.FAILED else ""
    over = entry.state == RunState.FINISHED or (entry.batch and entry.state == RunState.CANCELLED)
    way_out = "" if over else f"; {again}"
    return f"{entry.state}{why} {ago(time.time() - (entry.ended or 0.0))}{code}{way_out}"
