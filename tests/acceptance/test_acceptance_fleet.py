"""A fleet as operators and services meet it: `up`, send_task by name, inspect, revoke, two fleets on one key."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from brimful_worker.local.server.valkey import Valkey
from support.commands import Running, brimful, environment, nothing_left, records, write_prompts
from support.fleets import declare_new
from support.strict_gateway import POISON, StrictGatewayProcess
from support.waiting import wait_until

KEY = "sk-canary-51c2be"


@dataclass(frozen=True)
class Fleet:
    """An ``up`` with one worker at a gateway, and a service's own app that knows nothing of brimful but a name."""

    gateway: StrictGatewayProcess
    valkey: Valkey
    env: dict[str, str]
    app: Celery


@pytest.fixture(scope="module")
def fleet(server: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    declare_new(server, KEY)
    with (
        StrictGatewayProcess(latency=0.3) as gateway,
        Celery("stranger", broker=server.url, backend=server.url, set_as_current=False) as app,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        env = {"ACS_API_BASE": gateway.url, "ACS_API_KEY": KEY, "BRIMFUL_REDIS_URL": server.url}
        with Running("up", "--workers", "1", **env) as up:
            _ready(app, 1)
            yield Fleet(gateway, server, env, app)
            assert up.interrupt() == 0
            nothing_left(up.family)


def _ready(app: Celery, workers: int) -> None:
    wait_until(lambda: len(app.control.ping(timeout=1.0)) >= workers, f"{workers} workers to answer a ping", timeout=60)


def test_a_stranger_and_a_service_get_completions(fleet: Fleet) -> None:
    app, url = fleet.app, fleet.valkey.url
    asked = [
        app.send_task("brimful.sample", args=["The sky is"], kwargs={"max_tokens": 2}),
        app.send_task("brimful.sample", args=[{"prompt": "The sky is", "max_tokens": 2}], queue="batch"),
        app.send_task("brimful.sample", kwargs={"prompt": ["a", "b"], "max_tokens": 2, "n": 2}, queue="interactive"),
    ]
    texts = [[choice["text"] for choice in one.get(timeout=60)["choices"]] for one in asked]
    assert [len(each) for each in texts] == [1, 1, 4]
    assert texts[0] == [" The sky is → 0"]
    code = (
        "import brimful; result = brimful.sample.delay('The grass is', max_tokens=2);"
        "print(result.get(timeout=60)['choices'][0]['text'])"
    )
    service = environment(BRIMFUL_REDIS_URL=url)
    service.setdefault("PYTHONIOENCODING", "utf-8")
    said = subprocess.run([sys.executable, "-c", code], env=service, capture_output=True, text=True, timeout=60)
    assert said.stdout.strip() == "The grass is → 0", said.stderr
    with pytest.raises(Exception, match="max_tokens"):
        app.send_task("brimful.sample", args=["x"], kwargs={"max_tokens": 0}).get(timeout=60)
    status = brimful("status", "--json", BRIMFUL_REDIS_URL=url)
    assert status.returncode == 0, status.stderr
    assert KEY not in status.stdout


def test_celery_inspect_and_revoke_are_right_for_running_tasks(fleet: Fleet) -> None:
    app, gateway = fleet.app, fleet.gateway
    running = app.send_task("brimful.sample", args=[f"slow: {POISON}"], kwargs={"max_tokens": 2})
    wait_until(gateway.poisoned_ports, "the request at the gateway")
    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "brimful", "inspect", "active", "--json"],
        env=environment(**fleet.env), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert running.id in done.stdout, done.stderr
    assert POISON not in done.stdout, "a prompt shows in inspect"
    assert running.state == "STARTED"
    app.control.revoke(running.id, terminate=True)
    wait_until(lambda: running.state == "REVOKED", "the task to be revoked")
    wait_until(lambda: list(_active(app).values()) == [[]], "nothing to be active")
    wait_until(lambda: not gateway.ledger()["active"], "the request to be closed")


def test_two_fleets_and_two_runs_on_one_key_stay_within_its_limits(fleet: Fleet, tmp_path: Path) -> None:
    before = fleet.gateway.ledger()
    outs = [tmp_path / f"{place}.out.jsonl" for place in range(2)]
    flags = ("--pack", "off", "--max-tokens", "8")
    with Running("up", "--workers", "1", **fleet.env) as other:
        _ready(fleet.app, 2)
        runs = [
            Running("run", write_prompts(tmp_path / f"{place}.jsonl", 100), "-o", out, *flags, **fleet.env)
            for place, out in enumerate(outs)
        ]
        for run in runs:
            with run:
                output, _ = run.process.communicate(timeout=120)
                assert run.process.returncode == 0, output
        assert other.interrupt() == 0
        nothing_left(other.family)
    ledger = fleet.gateway.ledger()
    assert ledger["peak_active"] <= 16
    assert ledger["most_in_window"] <= 600
    assert set(ledger["statuses"]) == {"200"}
    assert ledger["sampled"] == before["sampled"] + 200
    # The two files hold the same prompts: each is asked once a run.
    assert ledger["sampled_twice"] == before["sampled_twice"] + 100
    assert [len(records(out)) for out in outs] == [100, 100]


def _active(app: Celery) -> dict[str, list[Any]]:
    """The running tasks of the only worker, by its name."""
    found: dict[str, list[Any]] = app.control.inspect(timeout=60, limit=1).active()
    return found
