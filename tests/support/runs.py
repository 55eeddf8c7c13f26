"""A run against a driver of one's own, without a fleet."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from brimful.config import Settings
from brimful.run.display.display import Quiet
from brimful.run.display.summary import Summary
from brimful.run.input.reader import ReadOptions
from brimful.run.input.sources import Source
from brimful.run.options import RunOptions
from brimful.run.prepare import prepare
from brimful.run.session import Session
from support.fake_driver import FakeDriver, Killed

PROFILE = Settings.load().profile


def options(*inputs: Path | str, out: Path | str, read: dict[str, Any] | None = None, **more: Any) -> RunOptions:
    reading = {"defaults": {"max_tokens": 8}, **(read or {})}
    return RunOptions(ReadOptions(tuple(Source(str(path)) for path in inputs), **reading), str(out), **more)


def run(asked: RunOptions, driver: FakeDriver | None = None) -> Summary | None:
    """The summary; None when the driver 'died'."""
    prepared = prepare(asked, PROFILE)
    try:
        session = Session(prepared, Quiet(table=False))
        return asyncio.run(session.run(None if prepared.complete else driver or FakeDriver()))
    except Killed:
        return None
    finally:
        prepared.close()


def records(path: Path) -> list[dict[str, Any]]:
    with path.open("rb") as file:
        return [json.loads(line) for line in file]


def write_lines(path: Path, lines: list[Any]) -> Path:
    """Objects as JSON, strings as they are, bytes as they are."""
    with path.open("wb") as file:
        for line in lines:
            data = line if isinstance(line, bytes) else (line if isinstance(line, str) else json.dumps(line)).encode()
            file.write(data + b"\n")
    return path
