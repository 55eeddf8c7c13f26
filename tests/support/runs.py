"""A run with a fake driver, without a fleet; and the files and figures that tests of runs need."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from brimful.config import Settings
from brimful.profile import Profile
from brimful.run.display.display import Display
from brimful.run.display.summary import Summary
from brimful.run.input.reader import ReadOptions
from brimful.run.input.sources import Source
from brimful.run.options import RunOptions
from brimful.run.prepare import prepare
from brimful.run.session import Session
from brimful.state.status import Status, WorkerStatus
from support.fake_driver import FakeDriver, Killed
from support.live_driver import LiveDriver

if TYPE_CHECKING:
    from brimful.dispatch.driver import Driver

PROFILE = Settings.load().profile
_WORKER = WorkerStatus("p", "w1@here", "here", 1, held=16, interactive=0, batch=0, heard_s=0.1)
_STATUS = Status(
    tag="tag", epoch="e", rebuilding=False, slots=16, slots_used=16, cooling=0, starts=600, starts_used=583,
    window_s=60.0, tokens=None, tokens_used=0, budget=None, budget_spent=0, waiting={"interactive": 0, "batch": 0},
    pause_s=0.0, pause_reason=None, circuit_breaker="closed", failures=0, limits={}, overridden=(), workers=(_WORKER,),
)  # fmt: skip


def fleet(*, waiting: int = 0, **figures: Any) -> Status:
    """The figures of a fleet of one worker: 16 of 16 slots used, 583 of 600 starts."""
    return replace(_STATUS, waiting={"interactive": 0, "batch": waiting}, **figures)


def options(*inputs: Path | str, out: Path | str, read: dict[str, Any] | None = None, **more: Any) -> RunOptions:
    reading = {"defaults": {"max_tokens": 8}, **(read or {})}
    return RunOptions(ReadOptions(tuple(Source(str(path)) for path in inputs), **reading), str(out), **more)


def run(asked: RunOptions, driver: FakeDriver | None = None, *, profile: Profile = PROFILE) -> Summary | None:
    """The run's summary; None if the driver raised :class:`Killed`."""
    prepared = prepare(asked, profile)
    if isinstance(driver, LiveDriver):
        driver.sync = prepared.sync
    try:
        session = Session(prepared, Display(table=False))
        return asyncio.run(session.run(None if prepared.complete else cast("Driver", driver or FakeDriver())))
    except Killed:
        return None
    finally:
        prepared.close()


def records(path: Path) -> list[dict[str, Any]]:
    with path.open("rb") as file:
        return [json.loads(line) for line in file]


def write_lines(path: Path, lines: list[Any]) -> Path:
    """Objects as JSON; strings and bytes as they are."""
    with path.open("wb") as file:
        for line in lines:
            data = line if isinstance(line, bytes) else (line if isinstance(line, str) else json.dumps(line)).encode()
            file.write(data + b"\n")
    return path


def prompts(tmp_path: Path, count: int = 10, **fields: object) -> Path:
    """An input of ``count`` lines with the ids p0, p1, …"""
    lines = [{"id": f"p{place}", "prompt": f"Say {place}", **fields} for place in range(count)]
    return write_lines(tmp_path / "in.jsonl", lines)


def identities(path: Path) -> list[tuple[str, int, int]]:
    """``(id, prompt_index, choice_index)`` of each record."""
    return [(record["id"], record["prompt_index"], record["choice_index"]) for record in records(path)]
