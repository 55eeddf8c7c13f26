"""``brimful runs`` from a second machine: two runs and a batch at once, listed, held, resumed, cancelled, deleted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from brimful.dispatch.ledger import result_fields
from brimful.errors import ExitCode
from brimful.outcome import Outcome
from brimful.runtime.identity import who
from brimful.state.callers.tokens import add_caller
from brimful.state.keys import RUNS, entry_key, run_key
from brimful.state.redis_url import sync_redis_client
from brimful.state.runs.entry import RunEntry
from brimful.state.runs.registry import read_entries
from brimful_worker.local.server.valkey import Valkey
from support.commands import Running, brimful, brimful_in_process, write_prompts
from support.doors import door
from support.fleets import Fleet, fleet
from support.gateways import gateway_process
from support.waiting import wait_until, wait_until_async

KEY = "sk-fleet"
LINES = 6000
"""More than are sampled while a test lasts: 16 a second."""


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    flags = ("--latency", "1", "--per-token", "0", "--starts", "0")
    with gateway_process(*flags) as gateway, fleet(monkeypatch, gateway, workers=1, starts=0) as it:
        yield it


class Elsewhere:
    """A machine that knows nothing but the URL of the Redis."""

    def __init__(self, home: Path, url: str) -> None:
        home.mkdir()
        self._env = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "BRIMFUL_REDIS_URL": url}

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """What ``brimful runs ARGUMENTS`` prints."""
        done = brimful(*arguments, **self._env)
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def listed(self) -> dict[str, dict[str, Any]]:
        """By the name of the output, or the batch."""
        found = [json.loads(line) for line in self("runs", "list", "--json").splitlines()]
        return {run["batch"] or Path(run["output"]).name: run for run in found}


def entries(url: str) -> dict[str, RunEntry]:
    """What :meth:`Elsewhere.listed` reads, sooner: a command takes a second to start."""
    with sync_redis_client(url) as client:
        return {entry.batch or Path(entry.output).name: entry for entry in read_entries(client)}


@contextlib.asynccontextmanager
async def a_batch(monkeypatch: pytest.MonkeyPatch, workers: Fleet) -> AsyncIterator[tuple[AsyncOpenAI, str]]:
    """Ann's batch at a front door, and its id."""
    url = workers.local.redis_url
    with sync_redis_client(url) as client:
        token = add_caller(client, "", "ann")
    body = {"model": "llama-8b", "max_tokens": 4}
    lines = [
        {"custom_id": f"c{place}", "method": "POST", "url": "/v1/completions", "body": body | asked}
        for place in range(LINES)
        for asked in [{"prompt": f"batch {place}", "seed": place}]  # so that they are not packed
    ]
    async with (
        door(monkeypatch, url, workers.gateway.url, key=KEY, clean=False, starts=0) as here,
        here.openai(api_key=token) as api,
    ):
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        file = await api.files.create(file=("in.jsonl", data), purpose="batch")
        made = await api.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
        yield api, made.id


def test_tail_prints_what_is_there_and_ends_with_the_run(tmp_path: Path, valkey: Valkey) -> None:
    """A run without an entry on which no command reports."""
    elsewhere = Elsewhere(tmp_path / "elsewhere", valkey.url)
    choice = {"index": 0, "text": "blue", "finish_reason": "stop"}
    outcome = Outcome("q", {"choices": [choice], "usage": {"total_tokens": 7}}, attempts=1)
    with sync_redis_client(valkey.url) as client:
        client.xadd(run_key("abcdef", "results"), dict(result_fields("q", [[4, "p4", 0, [0]]], outcome)))
    printed = elsewhere("runs", "tail", "abc", "--text")
    assert "p4  1 rollout, 7 tokens (stop), 0.0 s, 1 attempt\n  0.0 'blue'\n" in printed
    assert "run abcdef: no command reports on it" in printed
    assert "no run xyz in redis://" in elsewhere("runs", "show", "xyz", code=2)


@pytest.mark.parametrize("command", ["show", "tail", "hold", "resume", "cancel", "purge"])
def test_no_command_acts_on_another_fleet_s_run(valkey: Valkey, command: str) -> None:
    """Of runs with an entry, and of maps, which have none; typed with the fleet's name and without."""
    with sync_redis_client(valkey.url) as client:
        client.hset(entry_key("evals.abcdef"), mapping={"state": "running", "said": client.time()[0]})
        client.zadd(RUNS, {"evals.abcdef": client.time()[0]})
        client.zadd(run_key("123456", "shards"), {"s": 1})
        before = {key: client.dump(key) for key in client.scan_iter()}
        for run, own, way_out in (
            ("evals.abcdef", "", "set BRIMFUL_FLEET=evals"),
            ("abc", "", "set BRIMFUL_FLEET=evals"),
            ("123456", "evals", "unset BRIMFUL_FLEET"),
        ):
            env = {"BRIMFUL_REDIS_URL": valkey.url, "BRIMFUL_FLEET": own}
            done = brimful_in_process("runs", command, run, **env)
            assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
            assert way_out in done.stderr
        assert {key: client.dump(key) for key in client.scan_iter()} == before
    done = brimful_in_process("runs", "show", "abc", BRIMFUL_REDIS_URL=valkey.url, BRIMFUL_FLEET="evals")
    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(400)  # some twenty commands, each a process
async def test_two_runs_and_a_batch_are_steered_from_a_second_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, workers: Fleet
) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):  # the commands do not see them either
        monkeypatch.delenv(name, raising=False)
    url = workers.local.redis_url
    env = {"ACS_API_BASE": workers.gateway.url, "ACS_API_KEY": KEY, "BRIMFUL_REDIS_URL": url}
    source = write_prompts(tmp_path / "in.jsonl", LINES)
    asked = ("run", source, "--pack", "off", "--max-tokens", "4", "-o")
    elsewhere = Elsewhere(tmp_path / "elsewhere", url)
    with Running(*asked, tmp_path / "a.jsonl", **env) as a, Running(*asked, tmp_path / "b.jsonl", **env) as b:
        async with a_batch(monkeypatch, workers) as (api, batch):
            await asyncio.to_thread(_steer, elsewhere, workers, a, b, batch)

            async def over() -> bool:
                return (await api.batches.retrieve(batch)).status == "cancelled"

            await wait_until_async(over, "its caller to see that the batch was cancelled", 60)
        found = elsewhere.listed()
        assert {run["state"] for run in found.values()} == {"cancelled"}
        assert {run["exit_code"] for run in found.values()} == {130}
        runs = [run["run"] for run in found.values()]
        assert elsewhere("runs", "hold", runs[0], code=2).count("has ended (cancelled)") == 1
        assert elsewhere("runs", "purge", "--all").count("  deleted") == 3
        assert not entries(url)


def _steer(elsewhere: Elsewhere, workers: Fleet, a: Running, b: Running, batch: str) -> None:
    url = workers.local.redis_url

    def all_at_work() -> bool:
        under_way = {name for name, run in entries(url).items() if run.in_flight and run.total == LINES}
        return under_way == {"a.jsonl", "b.jsonl", batch}

    wait_until(all_at_work, "two runs and a batch at work", 60)
    found = elsewhere.listed()
    assert {run["state"] for run in found.values()} == {"running"}
    assert {run["host"] for run in found.values()} == {socket.gethostname()}
    assert found["a.jsonl"]["pid"] == a.process.pid
    assert found[batch]["caller"] == "ann"
    first, second, third = (found[name]["run"] for name in ("a.jsonl", "b.jsonl", batch))
    text = elsewhere("runs", "list")
    assert "ann@" in text
    assert str(found["a.jsonl"]["output"]) in text

    held = elsewhere("runs", "hold", first[:12], batch)
    assert held.count("  held") == 2
    assert f"held by {who()}: nothing new is sent until `brimful runs resume {first}`" in a.text_until("held by")
    status = elsewhere("status")
    assert f"run {first} by {who()}" in status
    assert f"run {third} by {who()}" in status

    def given_back() -> bool:
        now = entries(url)
        return now["a.jsonl"].in_flight == now[batch].in_flight == 0

    wait_until(given_back, "what the held runs had under way to end", 60)
    now = elsewhere.listed()
    assert (now["a.jsonl"]["state"], now[batch]["state"], now["b.jsonl"]["state"]) == ("held", "held", "running")
    assert now["a.jsonl"]["shards"] == now[batch]["shards"] == 0
    assert now["b.jsonl"]["in_flight"] > 0

    assert "  running" in elsewhere("runs", "resume", first)
    assert f"resumed by {who()}" in a.text_until("resumed")
    wait_until(lambda: entries(url)["a.jsonl"].done > now["a.jsonl"]["done"], "the resumed run to sample", 60)

    assert elsewhere("runs", "cancel", first, second, batch).count("\n") == 3
    assert a.process.wait(60) == b.process.wait(60) == 130
    assert f"cancelled by {who()}" in b.text_until("next")
    shown = elsewhere("runs", "show", second)
    assert "cancelled" in shown
    assert "exit code 130" in shown
    workers.gateway.set_options(latency_s=0)
