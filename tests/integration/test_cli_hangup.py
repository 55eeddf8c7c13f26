"""SIGHUP that was ignored at the start of a command (nohup) stays ignored by it and by all that it starts.

Without nohup it stops a fleet: test_cli_up.py.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from brimful_worker.local.server.valkey import Valkey
from support.commands import Running, RunningAnew, records, write_prompts
from support.waiting import wait_until


@pytest.fixture
def nohup() -> Iterator[None]:
    """What this process starts ignores SIGHUP, as under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


def _ignores_hangups(process: psutil.Process) -> bool:
    status = Path(f"/proc/{process.pid}/status").read_text()
    (mask,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:")]
    return bool(int(mask, 16) >> (signal.SIGHUP - 1) & 1)


def _hang_up(running: Running) -> None:
    """To each of its processes, all of which ignore it."""
    family = [psutil.Process(running.process.pid), *running.look()]
    assert [process.cmdline() for process in family if not _ignores_hangups(process)] == []
    for process in family:
        os.kill(process.pid, signal.SIGHUP)


@pytest.mark.usefixtures("nohup")
def test_up_and_its_fleet_ignore_it() -> None:
    with RunningAnew("up", "--rehearse", "--workers", "1") as up:
        assert "/v1" in up.line_with("mock gateway")
        up.line_with("1 worker ready")
        _hang_up(up)
        assert up.interrupt() == 0


@pytest.mark.usefixtures("nohup")
def test_a_worker_ignores_it(valkey: Valkey, tmp_path: Path) -> None:
    """Also where it would read its key's file again."""
    (tmp_path / "key").write_text("k")
    key = {"ACS_API_KEY_FILE": str(tmp_path / "key"), "ACS_API_BASE": "http://127.0.0.1:9/v1"}
    with Running("worker", BRIMFUL_REDIS_URL=valkey.url, **key) as worker:
        worker.line_with("ready.")
        _hang_up(worker)
        assert worker.interrupt() == 130


@pytest.mark.usefixtures("nohup")
def test_the_front_door_ignores_it(valkey: Valkey, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k")
    key = {"ACS_API_KEY_FILE": str(tmp_path / "key"), "ACS_API_BASE": "http://127.0.0.1:9/v1"}
    with Running("serve", "--port", "0", BRIMFUL_REDIS_URL=valkey.url, **key) as serve:
        serve.text_until("Ctrl-C stops it")
        _hang_up(serve)
        assert serve.interrupt() == 0


@pytest.mark.usefixtures("nohup")
def test_the_gateway_ignores_it() -> None:
    with Running("gateway", "--port", "0") as gateway:
        gateway.line_with("/v1")
        _hang_up(gateway)
        assert gateway.interrupt() == 0


@pytest.mark.usefixtures("nohup")
def test_a_run_ignores_it(tmp_path: Path) -> None:
    source, out = write_prompts(tmp_path / "in.jsonl", 40), tmp_path / "out.jsonl"
    with Running("run", source, "-o", out, "--rehearse", "--workers", "1", "--pack", "off", "--max-tokens", "8") as run:
        wait_until(out.exists, "the first rollouts")
        _hang_up(run)
        assert run.process.wait(60) == 0
    assert len(records(out)) == 40
