"""``brimful up`` as a user runs it: however it ends, it leaves no process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from pathlib import Path

import psutil
import pytest

from brimful_worker.local.server.valkey import Valkey, free_port
from support.commands import Running, brimful, nothing_left
from support.gateways import gateway_process

KEY = "sk-canary-77aa"


def test_ctrl_c_lets_requests_on_the_wire_finish_and_leaves_no_process(tmp_path: Path) -> None:
    from celery import Celery

    with gateway_process("--latency", "2", "--per-token", "0") as gateway:
        env = {"ACS_API_BASE": gateway.url, "ACS_API_KEY": KEY, "BRIMFUL_FLOWER_PASSWORD": "hush-hush"}
        with Running("up", "--workers", "1", **env) as up:
            url = up.line_with("export BRIMFUL_REDIS_URL=").strip().partition("=")[2]
            assert "hush-hush" in up.line_with("Flower")
            up.line_with("1 worker ready")
            family = up.look()
            holders = {child.pid for child in family if KEY in str(child.environ())}
            workers = {child.pid for child in family if "worker-1" in str(child.cmdline())}
            assert holders == workers
            assert len(workers) == 1
            assert not [child for child in family if KEY in str(child.cmdline())]
            assert not [child for child in family if "hush-hush" in str(child.cmdline())]
            with Celery("stranger", broker=url, backend=url, set_as_current=False) as app:
                asked = app.send_task("brimful.sample", args=["x"], kwargs={"max_tokens": 2})
                _until_on_the_wire(gateway)
                assert up.interrupt() == 0
            assert asked.id
            nothing_left(up.family)
        assert gateway.ledger()["statuses"] == {"200": 1}
    state = tmp_path / "state" / "brimful"
    assert {path.name for path in state.rglob("*.log")} >= {"worker-1.log", "flower.log"}, "they are kept for a week"
    assert state.stat().st_mode & 0o077 == 0


def test_the_url_is_the_same_at_the_next_start_on_the_same_port() -> None:
    port, urls = free_port(), []
    with gateway_process() as gateway:
        for _ in range(2):
            with Running("up", "--workers", "1", "--port", str(port), ACS_API_BASE=gateway.url, ACS_API_KEY=KEY) as up:
                urls.append(up.line_with("export BRIMFUL_REDIS_URL="))
                assert "/logs/" in up.line_with("logs  ")
                up.line_with("1 worker ready")
                assert up.interrupt() == 0
    assert urls[0] == urls[1]


def test_kill_9_leaves_no_process() -> None:
    with gateway_process("--latency", "60") as gateway:
        env = {"ACS_API_BASE": gateway.url, "ACS_API_KEY": KEY}
        with Running("up", "--workers", "2", **env) as up:
            up.line_with("2 workers ready")
            family = up.look()
            assert len(family) >= 5  # keeper, Valkey, two workers, Flower
            up.process.kill()
            up.process.wait()
            nothing_left(family)


def test_sigterm_stops_the_fleet_too() -> None:
    with Running("up", "--workers", "1", "--rehearse") as up:
        assert "/v1" in up.line_with("mock gateway")
        up.look()
        up.process.send_signal(signal.SIGTERM)
        assert up.process.wait(60) == 0
        nothing_left(up.family)


@pytest.mark.parametrize(
    ("flags", "env", "said"),
    [
        ((), {}, "ACS_API_BASE"),
        ((), {"ACS_API_BASE": "http://127.0.0.1:9/v1"}, "ACS_API_KEY"),
        (("--workers", "0"), {}, "--workers"),
        ((), {"BRIMFUL_REDIS_URL": "redis://127.0.0.1:1", "ACS_API_KEY": KEY}, "ACS_API_BASE"),
        (("--port", "7000"), {"BRIMFUL_REDIS_URL": "redis://127.0.0.1:1"}, "BRIMFUL_REDIS_URL is set"),
    ],
)
def test_a_missing_setting_is_named(flags: tuple[str, ...], env: dict[str, str], said: str) -> None:
    done = brimful("up", *flags, **env)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("away", ["before it starts", "behind a socket", "silent", "while its workers start"])
def test_it_waits_for_a_redis_that_is_away_and_says_so_once(away: str, tmp_path: Path) -> None:
    socket_path = tmp_path / "valkey.sock"
    valkey = Valkey(tmp_path / "valkey", port=free_port(), options=(f"unixsocket {socket_path}",))
    url = f"unix://{socket_path}?db=0" if away == "behind a socket" else valkey.url
    env = {"ACS_API_BASE": "http://127.0.0.1:9/v1", "ACS_API_KEY": KEY, "BRIMFUL_REDIS_URL": url}
    with contextlib.ExitStack() as stack:
        if away in ("silent", "while its workers start"):
            stack.enter_context(valkey)
        if away == "silent":
            os.kill(valkey.pid, signal.SIGSTOP)
        up = stack.enter_context(Running("up", "--workers", "1", **env))
        if away == "while its workers start":
            up.line_with("logs  ")
            valkey.kill()
        assert "no Redis at" in up.line_with("Waiting until it answers")
        if away == "silent":
            os.kill(valkey.pid, signal.SIGCONT)
        else:
            stack.enter_context(valkey)
        assert "Waiting" not in up.text_until("1 worker ready")
        assert up.interrupt() == 0
        nothing_left(up.family)


def test_ctrl_c_ends_the_wait_for_redis() -> None:
    url = f"redis://127.0.0.1:{free_port()}"
    with Running("up", ACS_API_BASE="http://127.0.0.1:9/v1", ACS_API_KEY=KEY, BRIMFUL_REDIS_URL=url) as up:
        up.line_with("Waiting until it answers")
        assert up.interrupt() == 0


def test_a_redis_that_refuses_its_password_is_not_waited_for(tmp_path: Path) -> None:
    with Valkey(tmp_path / "valkey", password="right") as valkey:
        url = f"redis://:hush@127.0.0.1:{valkey.port}/0"
        done = brimful("up", ACS_API_BASE="http://127.0.0.1:9/v1", ACS_API_KEY=KEY, BRIMFUL_REDIS_URL=url)
    assert done.returncode == 2
    assert "refuses this user or password" in done.stderr
    assert "hush" not in done.stderr


@pytest.mark.parametrize("flag", ["--port", "--flower-port"])
def test_a_taken_port_is_named_and_no_process_is_left(flag: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = brimful("up", "--rehearse", "--workers", "1", flag, str(port))
    assert done.returncode == 2
    assert f"port {port} is taken" in done.stderr
    state = Path(os.environ["XDG_STATE_HOME"])
    assert not [process for process in psutil.process_iter(["cmdline"]) if str(state) in str(process.info["cmdline"])]


def _until_on_the_wire(gateway: object) -> None:
    from support.waiting import wait_until

    wait_until(lambda: gateway.ledger()["active"] == 1, "the request at the gateway")  # type: ignore[attr-defined]
