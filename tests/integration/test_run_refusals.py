"""A run whose Redis refuses commands or hangs, and signals meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from brimful.addresses import FleetAddress
from brimful.config import Settings
from brimful.dispatch.driver import Driver
from brimful.errors import RedisRefused, RedisUnreachable
from brimful.packing.request_size import line_profile
from brimful.packing.units import Unit
from brimful.profile import get_profile
from brimful.request import Request
from brimful.run.launch import DisplayOptions, run_to_end
from brimful.state import redis_retry
from brimful_worker.local.server.valkey import Valkey
from support.commands import brimful, command, environment, write_prompts
from support.fake_driver import FakeDriver
from support.fleets import shared_fleet
from support.runs import options, write_lines
from support.waiting import wait_until, wait_until_async


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(redis_retry, "REFUSAL_LIMIT_S", 1.0)
    redis_retry.forget_refusals()
    yield
    redis_retry.forget_refusals()


def _admin(valkey: Valkey, *words: Any) -> None:
    with redis.Redis.from_url(valkey.url) as client:
        client.execute_command(*words)


def test_a_redis_that_is_full_ends_the_run_resumable(
    tmp_path: Path, valkey: Valkey, capfd: pytest.CaptureFixture[str]
) -> None:
    source, out = write_lines(tmp_path / "in.txt", ["a", "b"]), tmp_path / "out.jsonl"
    settings, asked = Settings.load(redis_url=valkey.url), options(source, out=out)
    _admin(valkey, "CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(RedisRefused, match=r"OOM.*maxmemory.*resumes this run"):
        run_to_end(asked, settings, DisplayOptions(progress=False))
    assert "2 left" in capfd.readouterr().err
    assert redis_retry.recent_refusal() is not None
    _admin(valkey, "CONFIG", "SET", "maxmemory", "0")
    assert run_to_end(asked, settings, DisplayOptions(progress=False), lambda *_: FakeDriver()) == 0
    assert redis_retry.recent_refusal() is None, "it was the earlier run's"


def test_a_user_without_rights_ends_the_run_at_once(tmp_path: Path, valkey: Valkey) -> None:
    asked = options(write_lines(tmp_path / "in.txt", ["a"]), out=tmp_path / "out.jsonl")
    _admin(valkey, "ACL", "SETUSER", "reader", "on", ">pw", "~*", "&*", "+@read", "+@connection")
    url = f"redis://reader:pw@127.0.0.1:{valkey.port}/0"
    with pytest.raises(RedisUnreachable, match=r"NOPERM.*BRIMFUL_REDIS_URL") as refused:
        run_to_end(asked, Settings.load(redis_url=url), DisplayOptions(progress=False))
    assert "pw@" not in str(refused.value)


async def test_draining_ends_though_redis_is_full(valkey: Valkey, caplog: pytest.LogCaptureFixture) -> None:
    profile = get_profile("acs")
    driver = Driver(FleetAddress(valkey.url), "r", profile)
    units = [Unit(1, "1", Request.parse({"prompt": "a"}, line_profile(profile)))]

    async def all_of_it() -> list[Any]:
        return [batch async for batch in driver.deliveries(iter(units), total=1)]

    running = asyncio.create_task(all_of_it())
    with redis.Redis.from_url(valkey.url) as client:
        await wait_until_async(lambda: bool(client.llen("batch")), "the request to be enqueued")
    _admin(valkey, "CONFIG", "SET", "maxmemory", "1")
    async with asyncio.timeout(60):
        await driver.stop(drain=True)
        assert await running == []
    assert "stopped without waiting for what is on the wire: Redis refuses commands: OOM" in caplog.text


_RUN = ("--max-tokens", "8", "--no-progress", "--pack", "off")


def test_a_second_press_of_ctrl_c_ends_a_run_whose_redis_hangs(tmp_path: Path, valkey: Valkey) -> None:
    source, out = write_prompts(tmp_path / "in.jsonl", 5), tmp_path / "out.jsonl"
    env = environment(BRIMFUL_REDIS_URL=valkey.url, ACS_API_BASE="http://127.0.0.1:9/v1", ACS_API_KEY="k")
    with redis.Redis.from_url(valkey.url, decode_responses=True) as client:
        # As a script's background job: with SIGINT ignored.
        process = subprocess.Popen(
            command("run", source, "-o", out, *_RUN),
            env=env,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        )
        try:
            wait_until(lambda: client.llen("batch") > 0, "the requests to be enqueued")
            os.kill(valkey.pid, signal.SIGSTOP)
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            for line in process.stderr:
                if "stopping" in line:
                    break

            def pressed_again() -> bool:  # a second signal too soon counts as a copy of the first
                process.send_signal(signal.SIGINT)
                return process.poll() is not None

            wait_until(pressed_again, "the process to end")
            _, printed = process.communicate(timeout=60)
        finally:
            os.kill(valkey.pid, signal.SIGCONT)
            process.kill()
            process.wait()
    assert process.returncode == 130, printed
    assert "Traceback" not in printed


_INTERRUPTED = """
import os, signal, sys
from brimful.cli import main
module, sys.argv = sys.argv[1], ["brimful", *sys.argv[2:]]
class Interrupts:
    def find_spec(self, name, *more):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
main()
"""
"""Ctrl-C while that module is imported."""


_RUN_IN = ("run", "in.jsonl", "-o", "out.jsonl", "--rehearse")
_UP = ("up", "--rehearse")


@pytest.mark.parametrize(
    ("module", "arguments"),
    [("typer", _RUN_IN), ("brimful.cli.commands", _UP), ("brimful.config", _UP), ("redis", _RUN_IN), ("redis", _UP)],
    ids=lambda value: value[0] if isinstance(value, tuple) else value,
)
def test_ctrl_c_during_imports_prints_no_traceback(tmp_path: Path, module: str, arguments: tuple[str, ...]) -> None:
    write_prompts(tmp_path / "in.jsonl", 1)
    code = [sys.executable, "-c", _INTERRUPTED, module, *arguments]
    done = subprocess.run(code, env=environment(), capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert (done.returncode, done.stderr) == (130, "brimful: interrupted\n")


def test_ctrl_c_during_interpreter_shutdown_is_ignored() -> None:
    code = (
        "import atexit, os, signal, sys; atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT));"
        "from brimful.cli import main; sys.argv = ['brimful', '--help']; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of those whose runs use one fleet."""
    with shared_fleet(tmp_path_factory.mktemp("shared"), latency_s=0.0, workers=1, key="any") as it:
        it.gateway.set_options(per_token_s=0.0)
        yield {"ACS_API_BASE": it.gateway.url, "ACS_API_KEY": "any", "BRIMFUL_REDIS_URL": it.local.redis_url}


def test_a_full_standard_output_is_named(tmp_path: Path, shared: dict[str, str]) -> None:
    source = write_prompts(tmp_path / "in.jsonl", 30)
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command("run", source, "-o", "-", *_RUN),
            env=environment(**shared),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=90,
        )
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1] == "brimful: cannot write standard output: No space left on device"


def test_closed_standard_streams_neither_fail_a_run_nor_mix(tmp_path: Path, shared: dict[str, str]) -> None:
    source, out = write_prompts(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"

    def run(redirection: str, *more: str) -> subprocess.CompletedProcess[str]:
        words = ["sh", "-c", f'exec "$@" {redirection}', "sh", *command("run", source, "-o", out, *_RUN, *more)]
        return subprocess.run(words, env=environment(**shared), capture_output=True, text=True, timeout=90)

    closed = run(">&-")
    assert closed.returncode == 0, closed.stderr
    mute = run("2>&-", "--json")
    assert mute.returncode == 0
    assert json.loads(mute.stdout)["rollouts"] == 3
    refused = run(">&-", "--json")
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1] == "brimful: cannot write standard output: Bad file descriptor"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_standard_output_is_no_internal_error(tmp_path: Path, unbuffered: str) -> None:
    source = write_prompts(tmp_path / "in.jsonl", 3)
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command("validate", source),
            env=environment(PYTHONUNBUFFERED=unbuffered),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=90,
        )
    assert done.returncode == 1, done.stderr
    what = "cannot write" if unbuffered else "cannot write standard output"
    assert done.stderr.splitlines()[-1].startswith(f"brimful: {what}: No space left on device")


def test_a_wrong_model_in_the_first_lines_fails_those_lines_only(tmp_path: Path, shared: dict[str, str]) -> None:
    lines = [{"prompt": f"p{line}", "model": "nosuch" if line < 60 else "llama-8b"} for line in range(90)]
    source, out = write_lines(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    done = brimful("run", source, "-o", out, "--json", *_RUN, **shared)
    assert done.returncode == 3, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["succeeded"], summary["failed_by_cause"]) == (30, {"bad_request": 60})
    done = brimful("run", source, "-o", tmp_path / "o.jsonl", "--limit", "60", *_RUN, **shared)
    assert done.returncode == 1, done.stderr
    assert "refused every request in the same words: " in done.stderr
