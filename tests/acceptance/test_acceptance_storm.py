"""A run through a storm: workers, the server and the submitter are killed under it, and all is counted afterwards.

The short storm is part of ``make test``; ``make chaos`` runs the long one.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from brimful_worker.local.server.valkey import Valkey
from support.chaos import LONG, rounds
from support.commands import Running, nothing_left, records, write_prompts
from support.kills import STARTS, WINDOW_S, killed_under_a_run
from support.strict_gateway import StrictGatewayProcess
from support.waiting import wait_until


def _lines(out: Path) -> int:
    return out.read_bytes().count(b"\n") if out.exists() else 0


@pytest.mark.chaos
@pytest.mark.timeout(1800 if LONG else 240)
@pytest.mark.parametrize("memory", ["kept", "lost"] if LONG else ["lost"])  # kept: as in test_acceptance_pairings.py
def test_workers_and_the_server_are_killed_under_a_run(tmp_path: Path, memory: str) -> None:
    valkey = Valkey(tmp_path / "valkey", appendonly=memory == "kept")
    with valkey, StrictGatewayProcess(starts=STARTS, window=WINDOW_S, latency=0.4, spread=0.2) as gateway:
        where = {"BRIMFUL_REDIS_URL": valkey.url}
        lines, kills = rounds(90, 3000), rounds(3, 8)
        deaths = killed_under_a_run(tmp_path, gateway, valkey, where, lines=lines, rounds=kills, workers=rounds(2, 4))
        ledger = gateway.ledger()
    assert deaths >= 2
    assert ledger["peak_active"] <= 16
    assert ledger["most_in_window"] <= STARTS
    assert set(ledger["statuses"]) == {"200"}


@pytest.mark.chaos
@pytest.mark.timeout(1800 if LONG else 240)
def test_the_submitter_is_killed_again_and_again(tmp_path: Path) -> None:
    dice = random.Random(11)
    kills = 10 if LONG else 2
    count = 2000 if LONG else 120
    prompts, out = write_prompts(tmp_path / "prompts.jsonl", count), tmp_path / "out.jsonl"
    with StrictGatewayProcess(starts=1000, window=5, latency=0.3) as gateway:
        env = {
            "ACS_API_BASE": gateway.url,
            "ACS_API_KEY": "sk-storm",
            "BRIMFUL_STARTS": "1000",
            "BRIMFUL_WINDOW_S": "5",
        }
        arguments = ("run", prompts, "-o", out, "--pack", "off", "--max-tokens", "4", "--n", "2", "--workers", "1")
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
