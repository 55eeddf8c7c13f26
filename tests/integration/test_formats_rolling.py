"""A rolling restart: in the middle of a run, each worker is stopped and a new one started, one by one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import redis

from brimful_worker.local.server.valkey import Valkey
from support import formats
from support.commands import Running, command, environment, records, write_prompts
from support.pool_worker import Background
from support.strict_gateway import StrictGatewayProcess
from support.waiting import wait_until

SLOTS, STARTS, WINDOW_S = 6, 40, 2
WORKERS = 2


def _lines(out: Path) -> int:
    return out.read_bytes().count(b"\n") if out.exists() else 0


class Fleet:
    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._folder, self._env = folder, environment(**env)
        self._started = 0
        self.workers = [self._start() for _ in range(WORKERS)]

    def _start(self) -> Background:
        self._started += 1
        name = f"rolling-{self._started}"
        return Background(command("worker", "--name", name), self._env, self._folder / f"{name}.log")

    def ready(self) -> None:
        for worker in self.workers:
            worker.ready()

    def replace_oldest(self) -> None:
        """The new one first: the fleet is never smaller than it was."""
        self.workers.append(self._start().ready())
        assert self.workers.pop(0).stop(timeout=90) == 0

    def stop(self) -> None:
        for worker in self.workers:
            worker.__exit__(None, None, None)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("before", ["nothing", "version 1"])
def test_a_rolling_restart_in_the_middle_of_a_run(tmp_path: Path, valkey: Valkey, before: str) -> None:
    """``version 1``: workers of an earlier release were there, and their run, messages and leases are taken over."""
    out = tmp_path / "out.jsonl"
    if before == "version 1":
        prompts, count = tmp_path / "in.jsonl", formats.LINES
        shutil.copy(formats.FOLDER / "v1" / "in.jsonl", prompts)
        for path in (formats.FOLDER / "v1").glob("partial.jsonl.*"):
            shutil.copy(path, tmp_path / path.name.replace("partial", "out", 1))
        with redis.Redis(port=valkey.port) as client:
            formats.load(client, formats.read("redis-running.json"))
    else:
        prompts, count = write_prompts(tmp_path / "in.jsonl", 240), 240
    latency = 1.5 if before == "version 1" else 0.2
    with StrictGatewayProcess(slots=SLOTS, starts=STARTS, window=WINDOW_S, latency=latency) as gateway:
        env = {
            "ACS_API_BASE": gateway.url,
            "ACS_API_KEY": formats.KEY,
            "BRIMFUL_REDIS_URL": valkey.url,
            "BRIMFUL_SLOTS": str(SLOTS if before == "nothing" else 2),
            "BRIMFUL_STARTS": str(STARTS),
            "BRIMFUL_WINDOW_S": str(WINDOW_S),
        }
        fleet = Fleet(tmp_path, env)
        try:
            fleet.ready()
            run = Running("run", prompts, "-o", out, "--pack", "off", "--max-tokens", "4", "--no-progress", **env)
            with run:
                for place in range(WORKERS):
                    goal = max(1, count * (place + 1) // (WORKERS + 2))
                    wait_until(lambda goal=goal: _lines(out) >= goal or run.process.poll() is not None, "lines", 120)
                    if run.process.poll() is not None:  # on a slow machine it ends while workers start
                        assert place > 0, "the restart is in the middle of the run"
                        break
                    fleet.replace_oldest()
                output, _ = run.process.communicate(timeout=120)
                assert run.process.returncode == 0, output
        finally:
            fleet.stop()
        ledger = gateway.ledger()
    assert sorted(record["id"] for record in records(out)) == sorted(f"p{place}" for place in range(count))
    assert all(record["attempts"] == 1 for record in records(out))
    assert not Path(f"{out}.errors.jsonl").exists()
    assert ledger["sampled_twice"] == 0
    assert ledger["peak_active"] <= SLOTS
    assert ledger["most_in_window"] <= STARTS
    assert set(ledger["statuses"]) == {"200"}
