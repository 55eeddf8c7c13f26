"""Writes a run's entry in Redis while the run lasts, and carries out what ``brimful runs`` asks of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable
from importlib.metadata import version

from brimful.config import Settings
from brimful.names import BATCH_CALLER_VARIABLE, BATCH_VARIABLE, of_fleet
from brimful.run.display.forecast import Rates
from brimful.run.display.summary import Summary
from brimful.run.prepare import Prepared
from brimful.run.session import Session
from brimful.runtime.identity import host_name, user_name
from brimful.state.redis_retry import REDIS_ERRORS
from brimful.state.redis_url import close_redis_client, redis_client
from brimful.state.runs.entry import DONE_TTL_S, LEFT_TTL_S, Asked, RunState
from brimful.state.runs.heartbeat import Heartbeat, end_entry
from brimful.words.counted import counted
from brimful.words.phrases import cut

_END_S = 1.0
_MOST_CHARACTERS = 400
_ENDS = {"done": RunState.FINISHED, "interrupted": RunState.INTERRUPTED}

Fields = dict[str, str | int | float]


def has_entry() -> bool:
    """Whether the run writes an entry. One that only writes a batch's output keeps that of the run that sampled it."""
    return os.environ.get(BATCH_VARIABLE) != ""


class RemoteControl:
    """Keeps the entry of one try of a run, and makes its session obey it. The session's driver runs :attr:`heartbeat`;
    call :meth:`end` when the session has ended."""

    def __init__(self, prepared: Prepared, settings: Settings, session: Session, say: Callable[[str], None]) -> None:
        """``settings``: those of the fleet that samples it."""
        assert settings.redis_url is not None
        self._url = settings.redis_url
        self._prepared = prepared
        self._run = of_fleet(settings.fleet, prepared.run)
        self._session = session
        self._say = say
        self._rates = Rates()
        self._fixed = _fixed(prepared, settings)
        # A front door starts a batch's run again by itself, which must not resume a held one.
        self._keep_ask = bool(os.environ.get(BATCH_VARIABLE))
        self.heartbeat = Heartbeat(self._figures, self._obey, keep_ask=self._keep_ask)

    async def end(self) -> None:
        """Write how it ended, unless Redis does not answer within a second."""
        client = redis_client(self._url, socket_timeout=_END_S, socket_connect_timeout=_END_S)
        fields = self._figures() | _ending(self._session.summary)
        keep_s = DONE_TTL_S if fields["state"] == RunState.FINISHED else LEFT_TTL_S
        keep_ask = self._keep_ask and fields["state"] != RunState.FINISHED
        try:
            with contextlib.suppress(*REDIS_ERRORS, TimeoutError):
                async with asyncio.timeout(_END_S):
                    await end_entry(client, self._run, fields, keep_s=keep_s, keep_ask=keep_ask)
        finally:
            await close_redis_client(client)

    def _figures(self) -> Fields:
        progress = self._session.progress
        fields: Fields = {**self._fixed, "state": self._state()}
        if progress is None:
            return fields
        (rate,) = self._rates.update(progress.seconds, progress.new_rollouts)
        fields |= {
            "done": progress.succeeded,
            "failed": progress.failed - progress.pending,
            "causes": _causes(self._prepared),
            "rollouts": progress.rollouts,
            "tokens": progress.tokens,
            "rate": round(rate * 60, 1),
            "in_flight": progress.drive.queued,
            "redelivered": progress.drive.redelivered,
        }
        return fields if progress.total is None else fields | {"total": progress.total}

    def _state(self) -> RunState:
        if self._stopping:
            return RunState.STOPPING
        return RunState.HELD if self._session.held_by else RunState.RUNNING

    @property
    def _stopping(self) -> bool:
        """Nothing new is sent, for good."""
        driver = self._session.driver
        return self._session.interrupts > 0 or (driver is not None and driver.snapshot().stopping is not None)

    def _obey(self, asked: Asked, by: str) -> None:
        session, driver, by = self._session, self._session.driver, by or "somebody"
        if driver is None or (self._stopping and asked is not Asked.CANCEL_NOW):
            return
        if asked is Asked.HOLD:
            session.held_by = by
            driver.hold(True)
            waiting = counted(driver.snapshot().queued, "API call")
            self._say(
                f"held by {by}: nothing new is sent until `brimful runs resume {self._run}`; of {waiting} under way, "
                "those that have reached the provider are waited for"
            )
        elif asked is Asked.NOTHING:
            session.held_by = ""
            driver.hold(False)
            self._say(f"resumed by {by}")
        else:
            session.cancelled_by = by
            self._say(f"cancelled by {by} (`brimful runs cancel`)")
            session.interrupt()
            if asked is Asked.CANCEL_NOW and session.interrupts < 2:
                session.interrupt()


def _fixed(prepared: Prepared, settings: Settings) -> Fields:
    """The fields that stay the same while the run lasts."""
    names = [source.name for source in prepared.options.read.sources]
    more = f" and {counted(len(names) - 1, 'more file')}" if len(names) > 1 else ""
    return {
        "output": _text(str(prepared.paths.output.absolute()) if prepared.paths is not None else "-"),
        "input": _text((names[0] if names else "") + more),
        "user": _text(user_name()),
        "host": _text(host_name()),
        "pid": os.getpid(),
        "version": version("brimful"),
        "batch": _text(os.environ.get(BATCH_VARIABLE, "")),
        "caller": _text(os.environ.get(BATCH_CALLER_VARIABLE, "")),
        "weight": settings.weight,
        "started": round(time.time(), 3),
    }


def _causes(prepared: Prepared) -> str:
    return json.dumps(dict(prepared.errors.causes)) if prepared.errors is not None else ""


def _ending(summary: Summary | None) -> Fields:
    """``summary`` None: an internal fault."""
    fields: Fields = {"state": RunState.FAILED, "ended": round(time.time(), 3), "in_flight": 0}
    if summary is None:
        return fields
    state = RunState.CANCELLED if summary.cancelled_by else _ENDS.get(summary.ended, RunState.FAILED)
    return fields | {
        "state": state,
        "ended_by": summary.ended,
        "exit_code": summary.exit_code,
        "done": summary.succeeded,
        "failed": summary.failed,
        "causes": json.dumps(summary.failed_by_cause),
        "rollouts": summary.rollouts,
        "tokens": summary.tokens,
        "rate": summary.achieved.get("rollouts_per_minute") or 0.0,
    }


def _text(value: str) -> str:
    """Valid UTF-8, and not too long: names of files may hold any bytes."""
    return cut(value.encode("utf-8", "replace").decode(), _MOST_CHARACTERS)
