"""What is loaded when, and small rules of the commands."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import brimful
from brimful.config import Settings
from brimful.errors import BadRequest, SettingError
from brimful.outcome import Outcome
from brimful.packing.units import DriveStatus
from brimful.profile import get_profile
from brimful.request import Request
from brimful.run.display.progress import Progress
from brimful.run.display.summary import Summary
from brimful.run.display.terminal import TerminalDisplay
from brimful.runtime.port import bind
from brimful_worker.local.processes.logs import KEPT, clear_logs


def _run(code: str) -> str:
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    return done.stdout.strip()


def test_every_public_name_is_there_when_it_is_wanted() -> None:
    for name in brimful.__all__:
        assert getattr(brimful, name) is not None
    assert set(brimful.__all__) <= set(dir(brimful))
    with pytest.raises(AttributeError, match="nothing"):
        _ = brimful.nothing  # type: ignore[attr-defined]


def test_the_command_and_the_package_begin_light() -> None:
    heavy = {"celery", "kombu", "redis", "pydantic", "typer", "rich", "asyncio"}
    assert not heavy & set(_run("import brimful, brimful.cli, sys; print(*sys.modules)").split())


def test_celery_finds_the_app_with_its_tasks() -> None:
    code = "from celery.app.utils import find_app; print(*sorted(find_app('brimful').tasks))"
    assert {"brimful.sample", "brimful.shard"} <= set(_run(code).split())


def test_a_task_takes_its_request_by_keyword_too() -> None:
    class Fake:
        parsed: Any = None

        def parse(self, raw: Any, fields: dict[str, Any]) -> Request:
            self.parsed = Request.parse(raw, get_profile("acs"), **fields)
            return self.parsed  # type: ignore[no-any-return]

        async def sample(self, request: Request) -> Outcome:
            return Outcome("r", completion={"choices": []})

    port = Fake()
    bind(port)  # type: ignore[arg-type]
    try:
        for args, kwargs in (((), {"request": {"prompt": "a"}, "n": 1}), (("a",), {"n": 1}), ((), {"prompt": "a"})):
            assert asyncio.run(brimful.sample.run(*args, **kwargs))["choices"] == []
            assert port.parsed.prompts == ["a"]
    finally:
        bind(None)


@pytest.mark.parametrize("model", ["", "  "])
def test_an_empty_model_is_no_request(model: str) -> None:
    with pytest.raises(BadRequest, match="model: is empty"):
        Request.parse({"prompt": "a", "model": model}, get_profile("acs"))


def test_a_redis_url_of_another_kind_is_named() -> None:
    with pytest.raises(SettingError, match=r"^BRIMFUL_REDIS_URL: must begin with redis://.* or sentinel://$"):
        Settings.load(redis_url="http://x")


async def test_no_colour_is_no_bold_either(monkeypatch: pytest.MonkeyPatch) -> None:
    async def gauges() -> None:
        return None

    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, to rich
    terminal = TerminalDisplay(gauges)
    terminal.console.file = out = io.StringIO()
    progress = Progress(
        seconds=1, requests=2, total=4, succeeded=1, failed=1, rollouts=1, new_rollouts=1, tokens=1, budget=None,
        retries={}, drive=DriveStatus(), stopping=True,
    )  # fmt: skip
    terminal.say("a word")
    await terminal.show(progress)
    terminal.end(Summary(next="brimful run", failed=1))
    assert "requests" in out.getvalue()
    assert not [part for part in out.getvalue().split("\x1b[")[1:] if part.lstrip("0123456789;").startswith("m")]


def test_logs_of_killed_fleets_are_cleared_away(tmp_path: Path) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    gone, alive, kept = (tmp_path / f"{pid}-ab" for pid in (process.pid, os.getpid(), 1 << 22))
    for directory in (gone, alive, kept):
        directory.mkdir()
        (directory / "worker-1.log").touch()
    (kept / KEPT).touch()
    clear_logs(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([alive.name, kept.name])
