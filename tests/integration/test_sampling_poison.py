"""Deaths of workers are charged to what was on the wire, and a poison request costs itself alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from brimful.config import Settings
from brimful.errors import SampleError
from brimful.names import Workload
from brimful_worker.admission import Admission
from brimful_worker.broker.qos import LOST_HEADER
from brimful_worker.broker.requests import MAX_LOST
from brimful_worker.local.server.valkey import Valkey
from brimful_worker.sampling.suspects import MAX_DEATHS
from support.chaos import LONG
from support.commands import Running, records
from support.gateways import GatewayProcess, gateway_process
from support.poison import POISON, Fleet
from support.pool_worker import client
from support.waiting import wait_until, wait_until_async

WAIT_S = 240.0
KEY = "sk-poison"
SOON = {"BRIMFUL_VISIBILITY_TIMEOUT_S": "3", "BRIMFUL_LEASE_S": "3", "BRIMFUL_COOLDOWN_S": "0.1"}
"""A dead worker's tasks are with another after three seconds."""
NOT_KILLED = {"BRIMFUL_GUARDIAN": "0"}
"""It would end a worker that a busy machine stops for two seconds, and each death is counted."""


@contextmanager
def fleet(
    tmp_path: Path, valkey: Valkey, workers: int = 2, latency: float = 1.0, **env: str
) -> Iterator[tuple[Fleet, GatewayProcess, Celery, dict[str, str]]]:
    with gateway_process("--latency", str(latency), "--per-token", "0") as gateway, client(valkey.url) as app:
        env = {
            "ACS_API_BASE": gateway.url,
            "ACS_API_KEY": KEY,
            "BRIMFUL_REDIS_URL": valkey.url,
            **SOON,
            **NOT_KILLED,
            **env,
        }
        with Fleet(tmp_path, workers, **env) as it:
            it.ready()
            yield it, gateway, app, env


def ask(app: Celery, prompt: str, **options: Any) -> Any:
    return app.send_task("brimful.sample", [prompt], {"max_tokens": 4}, queue="batch", **options)


@pytest.mark.chaos
@pytest.mark.timeout(400)
def test_a_poison_request_costs_its_neighbours_nothing(tmp_path: Path, valkey: Valkey) -> None:
    count = 22 if LONG else 6
    with fleet(tmp_path, valkey, 1, 3.0 if LONG else 1.0) as (it, gateway, app, _):
        tasks = [ask(app, f"innocent {place}") for place in range(count)]
        poison = ask(app, POISON)
        wait_until(lambda: it.tend() >= 0 and poison.ready(), "the poison to be set aside", WAIT_S)
        with pytest.raises(SampleError, match=f"{MAX_DEATHS} workers died while they sampled it"):
            poison.get(timeout=60)
        wait_until(lambda: it.tend() >= 0 and all(task.ready() for task in tasks), "the others to end", WAIT_S)
        assert [task.state for task in tasks] == ["SUCCESS"] * count
        assert it.deaths == MAX_DEATHS
        assert gateway.ledger()["peak_active"] <= 16
        assert gateway.sampled([POISON])[0]["attempts"] == MAX_DEATHS


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_a_packed_run_loses_the_poison_line_alone(tmp_path: Path, valkey: Valkey) -> None:
    count = 59 if LONG else 9
    place = count // 2
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    rows = [{"id": f"p{line}", "prompt": POISON if line == place else f"innocent {line}"} for line in range(count)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with (
        fleet(tmp_path, valkey, 2 if LONG else 1, latency=0.3) as (it, gateway, _, env),
        Running(
            "run", prompts, "-o", out, "--pack", str(count), "--max-tokens", "4", "--no-progress", "--json", **env
        ) as run,
    ):
        wait_until(lambda: it.tend() >= 0 and run.process.poll() is not None, "the run to end", 2 * WAIT_S)
        output, _ = run.process.communicate()
        assert run.process.returncode == 3, output
        ledger, summary = gateway.ledger(), json.loads(output.splitlines()[-1])
        assert ledger["peak_active"] <= 16
        assert ledger["budget"]["used"] <= summary["tokens"] + summary["unmetered_tokens"], "each death costs"
        assert summary["unmetered_tokens"] >= it.deaths * 5, "a prompt and four tokens at least"
    innocent = [row["id"] for row in rows if row["prompt"] != POISON]
    assert sorted(record["id"] for record in records(out)) == sorted(innocent)
    [failed] = records(tmp_path / "out.jsonl.errors.jsonl")
    assert (failed["id"], failed["cause"]) == (f"p{place}", "worker_lost")
    assert f"{MAX_DEATHS} workers died while they sampled it" in failed["message"]


@pytest.mark.chaos
@pytest.mark.timeout(400)
async def test_what_never_started_is_not_charged(
    tmp_path: Path, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Countdowns, messages that were fetched ahead, and requests that wait for a slot, which another process holds."""
    kills = 10 if LONG else 2
    before = {} if LONG else {LOST_HEADER: MAX_LOST - kills}  # what an earlier release would have charged
    monkeypatch.setenv("ACS_API_KEY", KEY)
    settings = Settings.load(redis_url=valkey.url, slots=1, lease_s=60)
    with fleet(tmp_path, valkey, 1, 0.0, BRIMFUL_SLOTS="1") as (it, _, app, _):
        async with Admission.from_settings(settings) as other, other.slot(Workload.INTERACTIVE):
            later = [ask(app, f"later {place}", countdown=3600, headers=before) for place in range(30)]
            waiting = [ask(app, f"waits {place}", headers=before) for place in range(5)]
            with redis.Redis(port=valkey.port) as server:
                await wait_until_async(lambda: server.zcard("unacked_index") == 35, "a worker that holds all", 60)
                for _ in range(kills):
                    await asyncio.to_thread(it.kill_all)
                    await wait_until_async(lambda: it.newest.count("requeued a task") >= 35, "the next to", 60)
                    await wait_until_async(lambda: server.hlen("unacked") == 35, "all to be delivered", 60)
                assert it.deaths == kills
                headers = [json.loads(raw)[0]["headers"] for raw in server.hvals("unacked")]
        assert {found.get(LOST_HEADER) for found in headers} == {before.get(LOST_HEADER)}
        await wait_until_async(lambda: all(task.ready() for task in waiting), "what waited", WAIT_S)
        assert [task.state for task in waiting] == ["SUCCESS"] * len(waiting)
        assert [task.state for task in later] == ["PENDING"] * len(later)
