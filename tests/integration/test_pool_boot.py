"""A worker process that starts while Redis is away."""

from __future__ import annotations

import signal
import time
import urllib.request
from pathlib import Path

from brimful_worker.local.server.valkey import Valkey, free_port
from support.commands import command, environment
from support.gateways import gateway_process
from support.pool_worker import Background, client
from support.waiting import wait_until

WAIT_S = 60
OUTAGE_S = 11.0
"""Longer than an admission waits for Redis unless it is asked to wait for ever."""


def warnings(worker: Background) -> list[str]:
    """Of an outage: on a busy machine Redis answers late, which is said too."""
    lines = [line for line in worker.output.splitlines() if "Redis" in line and "each start counts" not in line]
    return [line for line in lines if ": WARNING" in line or ": ERROR" in line]


def test_a_worker_waits_for_the_end_of_the_outage_and_warns_once(tmp_path: Path) -> None:
    port, metrics_port = free_port(), free_port()
    env = {"ACS_API_KEY": "sk-boot", "BRIMFUL_REDIS_URL": f"redis://127.0.0.1:{port}/0"}
    env |= {"BRIMFUL_METRICS_PORT": str(metrics_port), "BRIMFUL_WINDOW_S": "1", "BRIMFUL_LEASE_S": "2"}
    env |= {"BRIMFUL_GUARDIAN": "0"}  # it would end a worker that a busy machine stops for two seconds
    with (
        gateway_process() as gateway,
        Background(command("worker", "--name", "early"), environment(ACS_API_BASE=gateway.url, **env)) as early,
    ):
        wait_until(lambda: warnings(early), "a warning", WAIT_S)
        end = time.monotonic() + OUTAGE_S
        wait_until(lambda: time.monotonic() > end or early.process.poll() is not None, "the outage to last")
        assert early.process.poll() is None, early.output
        assert len(warnings(early)) == 1, early.output
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/healthz", timeout=60) as answer:
            assert answer.read() == b"ok\n"
        with Valkey(tmp_path, port=port) as server, client(server.url) as app:
            assert app.send_task("brimful.sample", ("p",), {"max_tokens": 4}).get(timeout=WAIT_S)["choices"]
            assert len(warnings(early)) == 2, early.output  # Redis is back
            assert early.stop(signal.SIGINT) == 130
