"""The guardian kills a worker that stands still before its slots go to others, and ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from support.commands import nothing_left
from support.fleets import fleet
from support.gateways import gateway_process
from support.waiting import wait_until

_BEATING = textwrap.dedent(
    """
    import sys, signal
    from brimful_worker.liveness.pulse import Pulse
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pulse = Pulse(lambda: 2.0)
    pulse.start()
    sys.stdin.read()
    pulse.stop()
    """
)


@contextmanager
def beating() -> Iterator[tuple[subprocess.Popen[bytes], psutil.Process]]:
    """A process, and its guardian."""
    environment = {"PATH": os.environ["PATH"], "ACS_API_KEY": "sk-secret"}
    process = subprocess.Popen(
        [sys.executable, "-c", _BEATING],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stderr is not None
    try:
        (guardian,) = wait_until(lambda: psutil.Process(process.pid).children(), "the guardian")
        wait_until(lambda: guardian.cmdline()[1:3] == ["-I", "-S"], "the guardian to run")
        yield process, guardian
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
        process.stdin.close()
        process.stderr.close()


def test_a_stopped_worker_is_killed_with_a_message() -> None:
    with beating() as (process, guardian):
        process.send_signal(signal.SIGSTOP)
        assert process.wait(60) == -signal.SIGKILL
        assert process.stderr is not None
        assert b"no heartbeat" in process.stderr.read()
        nothing_left([guardian])


@pytest.mark.parametrize("how", ["closes", "is killed"])
def test_the_guardian_ends_with_its_worker(how: str) -> None:
    with beating() as (process, guardian):
        assert process.stdin is not None
        process.kill() if how == "is killed" else process.stdin.close()
        process.wait(60)
        nothing_left([guardian])


def test_the_guardian_gets_no_key_and_no_terminal_signals() -> None:
    with beating() as (process, guardian):
        assert "sk-secret" not in str(guardian.environ())
        os.killpg(process.pid, signal.SIGINT)
        guardian.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGSTOP)
        assert process.wait(60) == -signal.SIGKILL, "it still guards"


def test_a_worker_suspended_with_its_guardian_lives_on() -> None:
    with beating() as (process, guardian):
        guardian.suspend()
        process.send_signal(signal.SIGSTOP)
        started = time.monotonic()
        wait_until(lambda: time.monotonic() > started + 3.0, "longer than it may be silent")
        guardian.resume()
        process.send_signal(signal.SIGCONT)
        used = guardian.cpu_times().user
        wait_until(lambda: guardian.cpu_times().user >= used and time.monotonic() > started + 5.5, "a verdict")
        assert process.poll() is None


def test_a_killed_guardian_is_replaced() -> None:
    with beating() as (process, guardian):
        guardian.kill()
        wait_until(lambda: [c.pid for c in psutil.Process(process.pid).children() if c != guardian], "another guardian")
        process.send_signal(signal.SIGSTOP)
        assert process.wait(60) == -signal.SIGKILL


def test_a_stopped_worker_is_killed_before_its_slots_are_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        gateway_process("--slots", "100", "--starts", "0", "--latency", "9", "--per-token", "0") as gateway,
        fleet(
            monkeypatch, gateway, workers=2, slots=6, starts=0, lease_s=5.0, cooldown_s=0.5, visibility_timeout_s=5
        ) as running,
    ):
        tasks = running.sample_many(12)
        wait_until(lambda: gateway.ledger()["active"] == 6, "all slots in use")
        gateway.set_options(latency_s=0.5)
        victim = running.local.worker_pids[0]
        os.kill(victim, signal.SIGSTOP)
        wait_until(lambda: victim not in running.local.worker_pids, "it to be ended, and replaced")
        for task in tasks:
            assert task.get(timeout=60)["choices"]
        assert gateway.ledger()["peak_active"] == 6
