"""Asks runs to hold, resume or stop, and waits until their entries show that they have."""

from __future__ import annotations

import time
from collections.abc import Sequence

import redis

from brimful.cli.style import say
from brimful.errors import ExitCode
from brimful.runtime.identity import who
from brimful.state.runs.entry import Asked, RunEntry, RunState
from brimful.state.runs.registry import ask, read_entry
from brimful.words.counted import counted

_PATIENCE_S = 15.0
_LOOK_S = 0.2
_STATES = {
    Asked.NOTHING: RunState.RUNNING,
    Asked.HOLD: RunState.HELD,
    Asked.CANCEL: RunState.STOPPING,
    Asked.CANCEL_NOW: RunState.STOPPING,
}
_VERBS = {Asked.NOTHING: "resume", Asked.HOLD: "hold", Asked.CANCEL: "stop", Asked.CANCEL_NOW: "stop at once"}


def ask_all(client: redis.Redis, runs: Sequence[str], asked: Asked) -> ExitCode:
    """Prints a line for each run that obeys. Raises UsageError if one cannot be asked, and redis.RedisError."""
    before = {run: ask(client, run, asked, who()) for run in runs}
    code, until = ExitCode.OK, time.monotonic() + _PATIENCE_S
    for run, entry in before.items():
        found = _obeyed(client, run, asked, until) if entry.live else None
        if found is not None:
            print(f"{run}  {_obeying(found)}")
        elif not entry.live:
            print(f"{run}  asked to {_VERBS[asked]}; takes effect when a front door continues {entry.batch}")
        else:
            say(
                f"run {run} was asked to {_VERBS[asked]}, but has not done so within {_PATIENCE_S:.0f} s: "
                f"see `brimful runs show {run}`"
            )
            code = ExitCode.INTERNAL
    return code


def _obeyed(client: redis.Redis, run: str, asked: Asked, until: float) -> RunEntry | None:
    while True:
        entry = read_entry(client, run)
        if entry is not None and (entry.ended is not None or entry.state == _STATES[asked]):
            return entry
        if time.monotonic() >= until:
            return None
        time.sleep(_LOOK_S)


def _obeying(entry: RunEntry) -> str:
    waiting = f": {counted(entry.in_flight, 'API call')} under way" if entry.in_flight else ""
    return entry.state + (waiting if entry.state in (RunState.HELD, RunState.STOPPING) else "")
