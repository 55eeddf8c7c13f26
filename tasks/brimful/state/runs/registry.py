"""Finds runs by their entries, and asks something of them. Plain commands; ``client`` blocks and answers with str.

Everything here raises redis.RedisError where Redis fails.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import redis

from brimful.errors import UsageError
from brimful.names import describe_fleet, fleet_in
from brimful.state.keys import RUNS, entry_key
from brimful.state.runs.entry import LOST_S, Asked, RunEntry, RunState, parse_entry
from brimful.words.phrases import enumerated

_SHOWN = 4


def read_entries(client: redis.Redis, *, live: bool = False) -> list[RunEntry]:
    """All entries that are kept, or only those of runs under way: these first, each kind the newest first."""
    now = _now(client)
    runs: Any = client.zrangebyscore(RUNS, now - LOST_S if live else "-inf", "+inf")
    found = [entry for entry in _read(client, runs, now) if entry.live or not live]
    return sorted(found, key=lambda entry: (not entry.live, -entry.started))


def read_entry(client: redis.Redis, run: str) -> RunEntry | None:
    """The run's entry. None where Redis has none: maps and runs of earlier releases write none, and entries expire."""
    return next(iter(_read(client, [run], _now(client))), None)


def runs_named(
    given: str, entries: Sequence[RunEntry], others: Sequence[str] = (), *, fleet: str
) -> tuple[list[str], list[str]]:
    """The fleet's runs that ``given`` names, and those of other fleets.

    It names the runs with this run id or batch id, or else those whose id starts with it.
    """
    names = _names(entries, others)
    exact = [run for run, each in names.items() if given in each]
    found = exact or [run for run, each in names.items() if any(_begins(name, given) for name in each if name)]
    return [run for run in found if fleet_in(run) == fleet], [run for run in found if fleet_in(run) != fleet]


def find_run(given: str, entries: Sequence[RunEntry], others: Sequence[str], where: str, *, fleet: str) -> str:
    """The fleet's run whose id, or batch's id, is or begins as ``given``; the fleet's name may be left out.

    ``others``: ids of runs without an entry. Raises UsageError, with runs that may be meant, unless it is one run, and
    where it is another fleet's.
    """
    if not given:  # as of a variable that is not set; it would be the beginning of every id
        raise UsageError("the run's id is empty: `brimful runs list` shows all")
    found, elsewhere = runs_named(given, entries, others, fleet=fleet)
    if len(found) == 1:
        return found[0]
    if found:
        shown = _some(found)
        raise UsageError(f"{given!r} begins the ids of several runs in {where}: {shown}; type more of the one you mean")
    if elsewhere:
        raise UsageError(_of_another_fleet(elsewhere, fleet))
    names = {run: each for run, each in _names(entries, others).items() if fleet_in(run) == fleet}
    known = {name: run for run, each in names.items() for name in (*each, _plain(run)) if name}
    near = list(dict.fromkeys(known[name] for name in difflib.get_close_matches(given, known, 3, 0.6)))
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    raise UsageError(f"no run {given} in {where}: {meant}`brimful runs list` shows all")


def ask(client: redis.Redis, run: str, asked: Asked, by: str) -> RunEntry:
    """Ask a run under way; it obeys within seconds. ``by``: ``user@host``. Returns the entry as it was.

    Raises UsageError if it is not under way, or is stopping already.
    """
    key, found = entry_key(run), []

    def write(pipe: Any) -> None:
        now = _seconds(pipe.time())
        raw = pipe.hgetall(key)
        found.append(parse_entry(run, raw, now))
        _check(found[-1], asked, there=bool(raw))
        pipe.multi()
        pipe.hset(key, mapping={"ask": asked.value, "asked_by": by})

    client.transaction(write, key)
    return found[-1]


def _check(entry: RunEntry, asked: Asked, *, there: bool) -> None:
    run = entry.run
    if not there:
        raise UsageError(
            f"run {run} has no entry in Redis, as maps and runs of earlier releases have none: stop it where it runs"
        )
    over = entry.state in (RunState.FINISHED, RunState.CANCELLED) if entry.batch else entry.ended is not None
    if over:
        raise UsageError(
            f"run {run} has ended ({entry.state}): only a run that is under way can be held, resumed or cancelled"
        )
    if entry.lost and not entry.batch:
        raise UsageError(
            f"run {run} is lost: it has not reported for {entry.silent_s:.0f} s. The `brimful run` that began it, "
            f"typed again at {entry.host or 'its machine'}, continues it"
        )
    stopping = entry.state == RunState.STOPPING or entry.ask in (Asked.CANCEL, Asked.CANCEL_NOW)
    if asked in (Asked.HOLD, Asked.NOTHING) and stopping:
        raise UsageError(f"run {run} is stopping: the `brimful run` that began it, typed again, continues it")
    if asked is Asked.NOTHING and entry.ask != Asked.HOLD:
        raise UsageError(f"run {run} is not held")


def _of_another_fleet(runs: Sequence[str], fleet: str) -> str:
    """Why runs that were named are refused, and what to do."""
    fleets = sorted({fleet_in(run) for run in runs}, reverse=True)
    subject = f"run {runs[0]} belongs" if len(runs) == 1 else f"runs {_some(runs)} belong"
    theirs = enumerated([describe_fleet(name) for name in fleets])
    ways = " or ".join(f"set BRIMFUL_FLEET={name}" if name else "unset BRIMFUL_FLEET" for name in fleets)
    return f"{subject} to {theirs}, but this command is for {describe_fleet(fleet)}: {ways}"


def _some(runs: Sequence[str]) -> str:
    return enumerated([*runs[:_SHOWN], *(["more"] if len(runs) > _SHOWN else [])])


def _names(entries: Sequence[RunEntry], others: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Id, and the batch's id or "", of each run."""
    return {entry.run: (entry.run, entry.batch) for entry in entries} | {run: (run, "") for run in others}


def _read(client: redis.Redis, runs: Sequence[str], now: float) -> list[RunEntry]:
    with client.pipeline(transaction=False) as pipe:
        for run in runs:
            pipe.hgetall(entry_key(run))
        return [parse_entry(run, raw, now) for run, raw in zip(runs, pipe.execute(), strict=True) if raw]


def _now(client: redis.Redis) -> float:
    return _seconds(client.time())


def _seconds(time: Any) -> float:
    return int(time[0]) + int(time[1]) / 1e6


def _plain(run: str) -> str:
    return run.rpartition(".")[2]


def _begins(name: str, given: str) -> bool:
    return name.startswith(given) or _plain(name).startswith(given)
