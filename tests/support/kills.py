"""A run whose workers and server are killed under it."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import psutil

from brimful_worker.local.server.valkey import Valkey
from support.commands import Running, nothing_left, records, write_prompts
from support.processes import command_line, kill
from support.waiting import wait_until

STARTS, WINDOW_S = 120, 6.0
"""The limits that the fleet has, and the strict gateway counts."""


class Gateway(Protocol):
    url: str


def killed_under_a_run(
    directory: Path,
    gateway: Gateway,
    valkey: Valkey,
    where: dict[str, str],
    *,
    lines: int,
    rounds: int,
    workers: int,
    **settings: str,
) -> int:
    """Run ``lines`` prompts through a fleet at the Redis of the environment ``where``.

    In each round half of the workers are killed, and in every third, from the second on, the server. Each line is in
    the output once. ``settings`` are further variables. Returns how many workers were killed.
    """
    dice = random.Random(7)
    prompts, out = write_prompts(directory / "prompts.jsonl", lines), directory / "out.jsonl"
    limits = {"BRIMFUL_STARTS": str(STARTS), "BRIMFUL_WINDOW_S": str(WINDOW_S), **settings}
    env: dict[str, Any] = {"ACS_API_BASE": gateway.url, "ACS_API_KEY": "sk-storm", **where, **limits}
    deaths = 0
    with Running("up", "--workers", str(workers), **env) as up:
        with Running("run", prompts, "-o", out, "--pack", "off", "--max-tokens", "4", **env) as run:
            for share in range(1, rounds + 1):
                goal = lines * share // (rounds + 2)
                wait_until(partial(_has_come_to, goal, out, run), "progress", 300)
                if share % 3 == 2:
                    valkey.kill()
                    valkey.start()
                else:
                    for worker in dice.sample(alive := _workers(up), k=max(1, len(alive) // 2)):
                        kill(worker)
                        deaths += 1
            output, _ = run.process.communicate(timeout=600)
            assert run.process.returncode == 0, output
        assert up.interrupt() == 0
        nothing_left(up.family)
    assert sorted(record["id"] for record in records(out)) == sorted(f"p{place}" for place in range(lines))
    return deaths


def _workers(up: Running) -> list[psutil.Process]:
    return [process for process in up.look() if "worker" in command_line(process)]


def _has_come_to(goal: int, out: Path, run: Running) -> bool:
    return _lines(out) >= goal or run.process.poll() is not None


def _lines(out: Path) -> int:
    return out.read_bytes().count(b"\n") if out.exists() else 0
