"""``brimful gateway`` as a process, and many connections to it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp
import pytest

from support.commands import Running, brimful_in_process
from support.gateways import gateway_process
from support.waiting import wait_until

KEY = {"Authorization": "Bearer sk-any"}


async def sample(url: str, prompts: list[str]) -> Counter[int]:
    """All at once, each on a connection of its own. Counts of statuses."""

    async def one(session: aiohttp.ClientSession, prompt: str) -> int:
        body: dict[str, Any] = {"model": "llama-8b", "prompt": prompt, "max_tokens": 8}
        async with session.post(f"{url}/completions", json=body) as answer:
            await answer.read()
            return answer.status

    async with aiohttp.ClientSession(headers=KEY, connector=aiohttp.TCPConnector(limit=0)) as session:
        return Counter(await asyncio.gather(*(one(session, prompt) for prompt in prompts)))


def test_a_thousand_connections_at_once() -> None:
    prompts = [f"question {number}" for number in range(1000)]
    flags = ("--latency", "2", "--per-token", "0", "--slots", "1", "--waiters", "1000", "--starts", "0")
    with gateway_process(*flags) as gateway, ThreadPoolExecutor(1) as thread:
        asking = thread.submit(asyncio.run, sample(gateway.url, prompts))
        wait_until(lambda: gateway.ledger()["arrivals"] == 1000, "all to arrive")
        gateway.set_options(slots=None)  # those that wait begin together, however long they took to arrive
        assert asking.result() == {200: 1000}
        ledger = gateway.ledger()
        assert gateway.sampled(prompts) == [{"attempts": 1, "sampled": [1]}] * 1000
    assert ledger["connections"]["opened"] >= 1000
    assert ledger["rollouts"] == {"total": 1000, "distinct": 1000, "repeated": 0, "prompts": 1000}
    assert (ledger["arrivals"], ledger["most_arrivals_in_window"], ledger["active"]) == (1000, 1000, 0)
    assert ledger["peak_active"] > 500
    assert ledger["slot_seconds"] >= 1999


def test_its_limits_hold_against_a_burst() -> None:
    with gateway_process("--latency", "1", "--per-token", "0", "--starts", "90", "--window", "3600") as gateway:
        statuses = asyncio.run(sample(gateway.url, [str(number) for number in range(200)]))
        ledger = gateway.ledger()
    assert statuses[429] == 200 - statuses[200] > 0
    assert ledger["peak_active"] == 16
    assert ledger["peak_waiting"] <= 64
    assert ledger["most_starts_in_window"] == 90
    assert ledger["codes"]["rate_limited"] == 110


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_cleanly(number: int) -> None:
    with Running("gateway", "--port", "0") as gateway:
        gateway.line_with("http://127.0.0.1:")
        gateway.process.send_signal(number)
        assert gateway.process.wait(60) == 0


def command(*flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "brimful.cli", "gateway", *flags],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


def test_faults_are_listed() -> None:
    found = brimful_in_process("gateway", "--faults", "list")
    assert found.returncode == 0
    assert "502 with an HTML page" in found.stdout


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--faults", "501"], "unknown fault '501'"),
        (["--retry-after", "soon"], "Invalid value for '--retry-after': 'soon' is not one of 'seconds', 'fraction',"),
    ],
)
def test_an_invalid_option_is_named(flags: list[str], says: str) -> None:
    found = brimful_in_process("gateway", *flags)
    assert found.returncode != 0
    assert says in found.stderr


def test_a_port_that_is_taken_is_named() -> None:
    with gateway_process() as gateway:
        port = gateway.root.rpartition(":")[2]
        found = command("--port", port)
    assert f"--port {port}: cannot listen on" in found.stderr


async def test_its_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIMFUL_GATEWAY_KEYS", "right, other")
    with gateway_process() as gateway:
        async with aiohttp.ClientSession() as session:
            statuses = []
            for key in ("wrong", "right", "other"):
                async with session.get(f"{gateway.url}/models", headers={"Authorization": f"Bearer {key}"}) as answer:
                    statuses.append(answer.status)
        assert statuses == [401, 200, 200]
        assert "right" not in json.dumps(gateway.ledger())
