"""A submitter that is killed and restarted again and again: nothing is lost, delivered twice or sampled twice."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
from pathlib import Path

import pytest

import support.submitter
from brimful.request import Request
from brimful_worker.local.server.valkey import Valkey
from support.forked import Forked
from support.stub_fleet import StubSampler, stub_fleet
from support.waiting import wait_until_async

_KILLS = 5


@pytest.mark.parametrize(("pack", "count"), [("off", 800), ("auto", 5_000)])
async def test_a_submitter_killed_at_random_points_loses_and_doubles_nothing(
    valkey: Valkey, tmp_path: Path, pack: str, count: int
) -> None:
    out = tmp_path / "out"
    chance = random.Random(pack)

    async def answer(request: Request) -> None:
        await asyncio.sleep(0.004 + 0.0004 * request.choices)

    sampler = StubSampler(answer, slots=4)
    kills = 0
    streams = {"stdout": subprocess.DEVNULL, "stderr": 2}
    async with stub_fleet(valkey.url, sampler):
        while True:
            process = Forked("support.submitter", valkey.url, str(count), str(out), pack, env=os.environ, **streams)
            if kills < _KILLS:
                written = out.stat().st_size if out.exists() else 0
                enough = written + chance.randrange(200, 6 * count)
                await wait_until_async(
                    lambda: process.poll() is not None or (out.exists() and out.stat().st_size > enough),  # noqa: B023
                    "more rollouts to be written",
                )
                if process.poll() is None:
                    process.kill()
                    kills += 1
                    process.wait()
                    with out.open("ab") as file:
                        file.write(b'[17, 0, 0, "to')  # an incomplete line
                    continue
            await wait_until_async(lambda: process.poll() is not None, "its end")  # noqa: B023
            assert process.returncode == 0
            break
    assert kills >= 3
    rows = [json.loads(row) for row in out.read_bytes().splitlines()]
    expected = {(line, 0, choice) for line in range(1, count + 1) for choice in range(support.submitter.N)}
    assert len(rows) == len(expected)
    assert {tuple(row[:3]) for row in rows} == expected
    assert all(row[3].startswith(f"p{row[0]}\u2028\ud83d#") for row in rows)
    assert sum(sampler.sampled.values()) == len(expected)
