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


def test_workers_that_end_between_submission_and_result_cost_no_second_job(
    gateway: GatewayProcess, valkey: Valkey, service: Any
) -> None:
    """The first is killed, the second is stopped cold; the third cancels a Job that is revoked."""

    def submitted(**fields: Any) -> Any:
        result = service.send_task("brimful.sample", ("The sky is",), {"max_tokens": 4, "mode": "job", **fields})
        wait_until(lambda: jobs(gateway)["by_status"].get("running"), "the Job to run", WAIT_S)
        return result

    with worker(gateway, valkey, "one") as first:
        wait_until(lambda: "one@test ready." in first.output, "the first worker", WAIT_S)
        result = submitted(n=2)
        first.stop(signal.SIGKILL)
    with worker(gateway, valkey, "two") as second:
        assert len(result.get(timeout=WAIT_S)["choices"]) == 2
        seen = jobs(gateway)
        assert (seen["created"], seen["by_status"]) == (1, {"succeeded": 1})
        result = submitted(n=3)
        second.stop(signal.SIGQUIT)
    with worker(gateway, valkey, "three") as third:
        assert len(result.get(timeout=WAIT_S)["choices"]) == 3
        seen = jobs(gateway)
        assert (seen["created"], seen["by_status"]) == (2, {"succeeded": 2})
        gateway.set_options(latency_s=60.0)
        service.control.revoke(submitted().id, terminate=True)
        wait_until(lambda: jobs(gateway)["by_status"] == {"succeeded": 2, "cancelled": 1}, "its cancellation", WAIT_S)
        assert third.stop() == 0
    for each in (first, second, third):
        assert KEY not in each.output
