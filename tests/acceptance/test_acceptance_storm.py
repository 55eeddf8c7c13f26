"""A run through a storm: workers, the server and the submitter are killed under it, and all is counted afterwards.

The short storm is part of ``make test``; ``make chaos`` runs the long one.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import psutil
import pytest

from brimful_worker.local.server.valkey import Valkey
from support.commands import Running, nothing_left, records, write_prompts
from support.strict_gateway import StrictGatewayProcess
from support.waiting import wait_until

LONG = os.environ.get("BRIMFUL_CHAOS") == "long"
LINES = 3000 if LONG else 300
LIMITS = {"BRIMFUL_STARTS": "120", "BRIMFUL_WINDOW_S": "6"}


def _workers(up: Running) -> list[psutil.Process]:
    return [process for process in up.look() if process.is_running() and "worker" in process.cmdline()]


def _lines(out: Path) -> int:
    return out.read_bytes().count(b"\n") if out.exists() else 0


@pytest.mark.chaos
@pytest.mark.timeout(1800 if LONG else 240)
@pytest.mark.parametrize("memory", ["kept", "lost"])
def test_workers_and_the_server_are_killed_under_a_run(tmp_path: Path, memory: str) -> None:
    dice = random.Random(7)
    prompts, out = write_prompts(tmp_path / "prompts.jsonl", LINES), tmp_path / "out.jsonl"
    valkey = Valkey(tmp_path / "valkey", appendonly=memory == "kept")
    with valkey, StrictGatewayProcess(starts=120, window=6, latency=0.4, spread=0.2) as gateway:
        env = {"ACS_API_BASE": gateway.url, "ACS_API_KEY": "sk-storm", "BRIMFUL_REDIS_URL": valkey.url, **LIMITS}
        with Running("up", "--workers", "4", **env) as up:
            run = Running("run", prompts, "-o", out, "--pack", "off", "--max-tokens", "4", **env)
            with run:
                deaths = 0
                for share in range(1, 9 if LONG else 4):
                    goal = LINES * share // (10 if LONG else 5)
                    wait_until(lambda goal=goal: _lines(out) >= goal or run.process.poll() is not None, "progress", 300)
                    if share % 3 == 2:
                        valkey.kill()
                        valkey.start()
                    else:
                        for worker in dice.sample(workers := _workers(up), k=max(1, len(workers) // 2)):
                            worker.kill()
                            deaths += 1
                output, _ = run.process.communicate(timeout=600)
                assert run.process.returncode == 0, output
            assert up.interrupt() == 0
            nothing_left(up.family)
        ledger = gateway.ledger()
    assert deaths >= 2
    assert sorted(record["id"] for record in records(out)) == sorted(f"p{place}" for place in range(LINES))
    assert ledger["peak_active"] <= 16
    assert ledger["most_in_window"] <= 120
    assert set(ledger["statuses"]) == {"200"}


@pytest.mark.chaos
@pytest.mark.timeout(1800 if LONG else 240)
def test_the_submitter_is_killed_again_and_again(tmp_path: Path) -> None:
    dice = random.Random(11)
    kills = 10 if LONG else 3
    count = 2000 if LONG else 240
    prompts, out = write_prompts(tmp_path / "prompts.jsonl", count), tmp_path / "out.jsonl"
    with StrictGatewayProcess(starts=1000, window=5, latency=0.3) as gateway:
        env = {
            "ACS_API_BASE": gateway.url,
            "ACS_API_KEY": "sk-storm",
            "BRIMFUL_STARTS": "1000",
            "BRIMFUL_WINDOW_S": "5",
        }
        arguments = ("run", prompts, "-o", out, "--pack", "off", "--max-tokens", "4", "--n", "2", "--workers", "2")
        for _ in range(kills):
            with Running(*arguments, **env) as run:
                goal = _lines(out) + dice.randrange(1, 2 * count // (2 * kills))
                wait_until(lambda goal=goal: _lines(out) >= goal or run.process.poll() is not None, "progress", 120)
                run.look()
                os.kill(run.process.pid, signal.SIGKILL)
                run.process.wait()
                nothing_left(run.family)
        with Running(*arguments, **env) as run:
            output, _ = run.process.communicate(timeout=300)
            assert run.process.returncode == 0, output
        ledger = gateway.ledger()
    got = sorted((record["id"], record["choice_index"]) for record in records(out))
    assert got == sorted((f"p{place}", choice) for place in range(count) for choice in range(2))
    assert ledger["sampled"] <= count + 16 * kills
    assert ledger["peak_active"] <= 16
    assert ledger["most_in_window"] <= 1000
