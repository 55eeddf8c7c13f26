"""A run's entry: a HASH of its own in Redis, written by its submitter every few seconds. No I/O.

A program reads the fields that it knows, with a default where one is missing or malformed: an entry may be of another
release.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from brimful.words.phrases import printable

LOST_S = 15.0
"""A submitter that has not written for this long has died, or does not reach Redis."""
LEFT_TTL_S = 7 * 24 * 3600
"""How long an entry is kept after it was last written: as long as what the run has left in Redis."""
DONE_TTL_S = 24 * 3600
"""The same, after the end of a run that has left nothing to do."""


class RunState(StrEnum):
    """Values of :attr:`RunEntry.state`. A later release may have others."""

    RUNNING = "running"
    HELD = "held"
    """It sends nothing new until it is resumed."""
    STOPPING = "stopping"
    """It waits for what has reached the provider, and ends."""
    FINISHED = "finished"
    """Everything was asked for; some lines may have failed."""
    CANCELLED = "cancelled"
    """``brimful runs cancel`` ended it. The same command, typed again, continues it, as after all below."""
    INTERRUPTED = "interrupted"
    """Ctrl-C or a signal."""
    FAILED = "failed"
    """It could not go on: budget, key, disk, Redis or the fleet."""
    LOST = "lost"
    """Never written: its submitter is silent."""


class Asked(StrEnum):
    """Values of :attr:`RunEntry.ask`. A submitter ignores others."""

    NOTHING = ""
    HOLD = "hold"
    CANCEL = "cancel"
    """As Ctrl-C at its terminal."""
    CANCEL_NOW = "cancel now"
    """As Ctrl-C twice."""


@dataclass(frozen=True, slots=True)
class RunEntry:
    """The fields of a run's entry.

    Times are Unix times in seconds, ``said`` by Redis's clock and the others by the submitter's.
    """

    run: str
    """Its id, with its fleet's name before it, if that has one."""
    silent_s: float = 0.0
    """Seconds since ``said``."""
    state: str = RunState.RUNNING
    ask: str = Asked.NOTHING
    """What an operator wants of it."""
    asked_by: str = ""
    output: str = ""
    input: str = ""
    user: str = ""
    host: str = ""
    pid: int = 0
    version: str = ""
    """Of brimful."""
    batch: str = ""
    """The id of the front door's batch that the run samples."""
    caller: str = ""
    """The batch's caller; empty without callers' tokens."""
    weight: float = 1.0
    started: float = 0.0
    said: float = 0.0
    ended: float | None = None
    """None while it is under way, and if its submitter died."""
    ended_by: str = ""
    """Why it ended: as ``ended`` in the JSON of ``brimful run``."""
    exit_code: int | None = None
    total: int | None = None
    """Prompts of the input; None: its end was not seen yet."""
    done: int = 0
    """Prompts sampled, in all tries."""
    failed: int = 0
    causes: str = ""
    """JSON: cause → failed prompts."""
    rollouts: int = 0
    tokens: int = 0
    rate: float = 0.0
    """Rollouts a minute, of late."""
    in_flight: int = 0
    """Requests that are queued, wait for a slot, or are on the wire."""
    redelivered: int = 0
    """Shards that were lost with a worker or by Redis, and enqueued again."""

    @property
    def lost(self) -> bool:
        return self.ended is None and self.silent_s >= LOST_S

    @property
    def live(self) -> bool:
        """Its submitter is at work on it."""
        return self.ended is None and not self.lost

    @property
    def state_now(self) -> str:
        return RunState.LOST if self.lost else self.state

    @property
    def who(self) -> str:
        """``user@host``, or the batch's caller at the front door's host."""
        return f"{self.caller or self.user}@{self.host}"

    @property
    def failures(self) -> dict[str, int]:
        """Cause → failed prompts, the most frequent first."""
        try:
            found = {str(cause): int(count) for cause, count in json.loads(self.causes or "{}").items()}
        except (ValueError, TypeError, AttributeError):
            return {}
        return dict(sorted(found.items(), key=lambda pair: (-pair[1], pair[0])))

    def as_json(self) -> dict[str, Any]:
        """JSON-ready; ``state`` is that of now."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return found | {"state": self.state_now, "silent_s": round(self.silent_s, 1), "causes": self.failures}


_KINDS: Mapping[str, type] = {"str": str, "int": int, "int | None": int, "float": float, "float | None": float}
_READ = {field.name: _KINDS[str(field.type)] for field in fields(RunEntry) if field.name not in ("run", "silent_s")}


def parse_entry(run: str, raw: Mapping[str, str], now: float) -> RunEntry:
    """The entry in ``raw``, the fields of its HASH. ``now``: Redis's time, in seconds."""
    values: dict[str, Any] = {}
    for name, kind in _READ.items():
        if name in raw:
            try:
                values[name] = kind(printable(raw[name]))
            except ValueError:
                continue
    return RunEntry(run, max(0.0, now - values.get("said", 0.0)), **values)
