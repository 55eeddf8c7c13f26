"""``brimful up`` as a user runs it: however it ends, it leaves no process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from brimful_worker.local.server.valkey import Valkey, free_port
from support.commands import Running, RunningAnew, brimful, brimful_in_process, nothing_left
from support.gateways import gateway_process
from support.processes import command_line, variables
from support.waiting import wait_until

KEY = "sk-canary-77aa"


def test_however_it_ends_it_leaves_no_process_and_its_url_stays(tmp_path: Path) -> None:
    """Ctrl-C lets requests on the wire finish; the next one is killed. Both have the same port of Valkey."""
    from celery import Celery

    port = str(free_port())
    with gateway_process("--latency", "2", "--per-token", "0") as gateway:
        env = {"ACS_API_BASE": gateway.url, "ACS_API_KEY": KEY, "BRIMFUL_FLOWER_PASSWORD": "hush-hush"}
        with RunningAnew("up", "--workers", "1", "--port", port, **env) as up:
            exported = up.line_with("export BRIMFUL_REDIS_URL=")
            assert "hush-hush" in up.line_with("Flower")
            assert "/logs/" in up.line_with("logs  ")
            up.line_with("1 worker ready")
            family = up.look()
            holders = {child.pid for child in family if KEY in str(variables(child))}
            workers = {child.pid for child in family if "worker-1" in str(command_line(child))}
            assert holders == workers
            assert len(workers) == 1
            assert not [child for child in family if KEY in str(command_line(child))]
            assert not [child for child in family if "hush-hush" in str(command_line(child))]
            url = exported.strip().partition("=")[2]
            with Celery("stranger", broker=url, backend=url, set_as_current=False) as app:
                asked = app.send_task("brimful.sample", args=["x"], kwargs={"max_tokens": 2})
                wait_until(lambda: gateway.ledger()["active"] == 1, "the request at the gateway")
                assert up.interrupt() == 0
            assert asked.id
            nothing_left(up.family)
        assert gateway.ledger()["statuses"] == {"200": 1}
        state = tmp_path / "state" / "brimful"
        assert {path.name for path in state.rglob("*.log")} >= {"worker-1.log", "flower.log"}, "kept for a week"
        assert state.stat().st_mode & 0o077 == 0
        with Running("up", "--workers", "2", "--port", port, **env) as up:
            assert up.line_with("export BRIMFUL_REDIS_URL=") == exported
            up.line_with("2 workers ready")
            family = up.look()
            assert len(family) >= 5  # keeper, Valkey, two workers, Flower
            up.process.kill()
            up.process.wait()
            nothing_left(family)


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
    done = brimful_in_process("up", *flags, **env)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_it_waits_for_a_redis_that_is_away_and_says_so_once(tmp_path: Path) -> None:
    """Behind a socket; before it starts, and again while its workers start. SIGTERM stops the fleet."""
    path = tmp_path / "valkey.sock"
    valkey = Valkey(tmp_path / "valkey", port=free_port(), options=(f"unixsocket {path}",))
    env = {"ACS_API_BASE": "http://127.0.0.1:9/v1", "ACS_API_KEY": KEY, "BRIMFUL_REDIS_URL": f"unix://{path}?db=0"}
    with contextlib.ExitStack() as stack, Running("up", "--workers", "1", **env) as up:
        assert "no Redis at" in up.line_with("Waiting until it answers")
        stack.enter_context(valkey)
        assert "Waiting" not in up.text_until("logs  ")
        valkey.kill()
        assert "no Redis at" in up.line_with("Waiting until it answers")
        valkey.start()
        assert "Waiting" not in up.text_until("1 worker ready")
        up.look()
        up.process.send_signal(signal.SIGTERM)
        assert up.process.wait(60) == 0
        nothing_left(up.family)


def test_it_waits_for_a_redis_that_is_silent_and_says_so_once(valkey: Valkey, no_nohup: None) -> None:
    """SIGHUP stops the fleet."""
    env = {"ACS_API_BASE": "http://127.0.0.1:9/v1", "ACS_API_KEY": KEY, "BRIMFUL_REDIS_URL": valkey.url}
    os.kill(valkey.pid, signal.SIGSTOP)
    with Running("up", "--workers", "1", **env) as up:
        assert "no Redis at" in up.line_with("Waiting until it answers")
        os.kill(valkey.pid, signal.SIGCONT)
        assert "Waiting" not in up.text_until("1 worker ready")
        up.look()
        up.process.send_signal(signal.SIGHUP)
        assert up.process.wait(60) == 0
        nothing_left(up.family)


@pytest.fixture
def no_nohup() -> Iterator[None]:
    """What this process starts does not ignore SIGHUP, even if this process itself runs under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_ctrl_c_ends_the_wait_for_redis() -> None:
    url = f"redis://127.0.0.1:{free_port()}"
    with Running("up", ACS_API_BASE="http://127.0.0.1:9/v1", ACS_API_KEY=KEY, BRIMFUL_REDIS_URL=url) as up:
        up.line_with("Waiting until it answers")
        assert up.interrupt() == 0


def test_a_redis_that_refuses_its_password_is_not_waited_for(tmp_path: Path) -> None:
    with Valkey(tmp_path / "valkey", password="right") as valkey:
        url = f"redis://:hush@127.0.0.1:{valkey.port}/0"
        done = brimful_in_process("up", ACS_API_BASE="http://127.0.0.1:9/v1", ACS_API_KEY=KEY, BRIMFUL_REDIS_URL=url)
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
