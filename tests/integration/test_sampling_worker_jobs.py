"""Jobs through real worker processes: killed, stopped and revoked between submission and result."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from brimful.config import Settings
from brimful_worker.admission import mark_clean
from brimful_worker.local.server.valkey import Valkey
from support.commands import command, environment
from support.gateways import GatewayProcess, gateway_process
from support.pool_worker import Background, client
from support.waiting import wait_until

KEY = "sk-canary-jobs"
WAIT_S = 60


@pytest.fixture
def gateway() -> Iterator[GatewayProcess]:
    with gateway_process("--latency", "2.0", "--per-token", "0") as gateway:
        yield gateway


def worker(gateway: GatewayProcess, valkey: Valkey, name: str) -> Background:
    env = {
        "ACS_API_BASE": gateway.url,
        "ACS_API_KEY": KEY,
        "BRIMFUL_REDIS_URL": valkey.url,
        "BRIMFUL_LEASE_S": "2",
        "BRIMFUL_GUARDIAN": "0",  # it would end a worker that a busy machine stops for two seconds
        "BRIMFUL_VISIBILITY_TIMEOUT_S": "4",
        "BRIMFUL_JOB_POLL_S": "0.1",
        "BRIMFUL_LOG_LEVEL": "DEBUG",
    }
    return Background(command("worker", "--name", f"{name}@test"), environment(**env))


@pytest.fixture
def service(gateway: GatewayProcess, valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("ACS_API_KEY", KEY)
    with redis.Redis.from_url(valkey.url) as connection:
        mark_clean(connection, Settings.load().key_tag)
    with client(valkey.url) as service:
        yield service


def jobs(gateway: GatewayProcess) -> dict[str, Any]:
    found: dict[str, Any] = gateway.ledger()["jobs"]
    return found


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGQUIT], ids=["killed", "stopped cold"])
def test_a_worker_that_ends_between_submission_and_result_costs_no_second_job(
    gateway: GatewayProcess, valkey: Valkey, service: Any, end: signal.Signals
) -> None:
    with worker(gateway, valkey, "one") as first:
        wait_until(lambda: "one@test ready." in first.output, "the first worker", WAIT_S)
        result = service.send_task("brimful.sample", ("The sky is",), {"max_tokens": 4, "n": 2, "mode": "job"})
        wait_until(lambda: jobs(gateway)["by_status"].get("running"), "the Job to run", WAIT_S)
        first.stop(end)
    with worker(gateway, valkey, "two"):
        answer = result.get(timeout=WAIT_S)
    assert len(answer["choices"]) == 2
    seen = jobs(gateway)
    assert (seen["created"], seen["by_status"]) == (1, {"succeeded": 1})
    assert KEY not in first.output


def test_revoking_cancels_the_job_at_the_provider(gateway: GatewayProcess, valkey: Valkey, service: Any) -> None:
    with worker(gateway, valkey, "one") as only:
        wait_until(lambda: "one@test ready." in only.output, "the worker", WAIT_S)
        result = service.send_task("brimful.sample", ("The sky is",), {"max_tokens": 4, "mode": "job"})
        wait_until(lambda: jobs(gateway)["by_status"].get("running"), "the Job to run", WAIT_S)
        service.control.revoke(result.id, terminate=True)
        wait_until(lambda: jobs(gateway)["by_status"] == {"cancelled": 1}, "the Job to be cancelled", WAIT_S)
        assert only.stop() == 0
