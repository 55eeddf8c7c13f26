"""How a real worker fills its places, measured by the gateway's request log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from celery import Celery

from brimful_worker.local.server.valkey import Valkey
from support.fleets import fleet
from support.gateways import gateway_process
from support.measuring import one_of_three
from support.pool_worker import Background
from support.waiting import wait_until

WAIT_S = 60


def test_a_place_that_becomes_free_takes_the_next_task_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        gateway_process("--latency", "0.05", "--per-token", "0", "--starts", "0") as gateway,
        fleet(monkeypatch, gateway, workers=1, concurrency=4, starts=0, slots=16) as running,
    ):
        running.sample("warm").get(timeout=WAIT_S)

        def seconds(work: Callable[[], None]) -> float:
            began = time.monotonic()
            work()
            return time.monotonic() - began

        def one_by_one() -> None:
            for number in range(40):
                running.sample(f"single {number}").get(timeout=WAIT_S)

        def at_once() -> None:
            for result in running.sample_many(40):
                result.get(timeout=WAIT_S)

        def compared() -> tuple[float, float]:
            alone = seconds(one_by_one)
            gateway.reset()
            together = seconds(at_once)
            assert gateway.ledger()["peak_active"] <= 4
            return together, alone

        one_of_three(compared, lambda found: found[0] < found[1])  # four places take less time than one


def test_the_autoscaler_fills_its_maximum(tmp_path: Path, valkey: Valkey) -> None:
    with gateway_process("--latency", "600", "--slots", "0", "--starts", "0") as gateway:
        command = [sys.executable, "-m", "celery", "-A", "brimful", "worker", "--autoscale", "8,2", "-l", "INFO"]
        environment = {
            **os.environ,
            "ACS_API_BASE": gateway.url,
            "ACS_API_KEY": "sk-places",
            "BRIMFUL_REDIS_URL": valkey.url,
            "BRIMFUL_SLOTS": "64",
        }
        with (
            Background([*command, "-n", "scaled@test"], environment, tmp_path / "worker.log") as worker,
            Celery(broker=valkey.url, set_as_current=False) as service,
        ):
            worker.ready()
            for number in range(12):
                service.send_task("brimful.sample", [f"prompt {number}"], {"max_tokens": 1}, queue="interactive")
            wait_until(lambda: gateway.ledger()["active"] >= 8, "eight requests at the gateway", WAIT_S)
