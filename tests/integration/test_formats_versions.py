"""Formats of other releases: version 1 is carried on with, a later one is refused by an error that names both."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from brimful.dispatch.ledger import Keys, Result, parse_results
from brimful.errors import SampleError, VersionMismatch
from brimful.limits import limits_from_redis
from brimful.names import TASK_SHARD
from brimful.outcome import Cause, Failure, Outcome
from brimful.packing.units import weight_of
from brimful.run.output.sidecar import Sidecar
from brimful.schema import FILES, HEADER, LEDGER, MESSAGES, check_schema
from brimful.state.broker_queues import ShardMessage, parse_message
from brimful.state.callers.tokens import CallerRecord, parse_record
from brimful.state.provider_health import LastAnswer, ProviderState, health_fields, parse_health
from brimful.state.runs.entry import parse_entry
from brimful_worker.local.server.valkey import Valkey
from support import formats
from support.commands import brimful
from support.fake_driver import FakeDriver
from support.fleets import Fleet, fleet
from support.formats import LATER
from support.gateways import GatewayProcess, gateway_process
from support.runs import identities, options, run

IDS = sorted((f"p{place}", 0, 0) for place in range(formats.LINES))
ASKED = ("--pack", "off", "--max-tokens", "4", "--no-progress")
V1 = formats.FOLDER / "v1"


def files(tmp_path: Path, name: str) -> Path:
    """The recorded files, as ``out.jsonl``."""
    for path in V1.glob(f"{name}.jsonl*"):
        shutil.copy(path, tmp_path / path.name.replace(name, "out", 1))
    shutil.copy(V1 / "in.jsonl", tmp_path)
    return tmp_path / "out.jsonl"


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayProcess]:
    with gateway_process("--latency", "0.05", "--per-token", "0") as gateway:
        yield gateway


@pytest.fixture
def client(valkey: Valkey) -> Iterator[redis.Redis]:
    with redis.Redis(port=valkey.port, decode_responses=True) as client:
        yield client


@pytest.mark.parametrize("name", ["partial", "whole"])
def test_files_of_version_1_are_carried_on_with(tmp_path: Path, name: str) -> None:
    out = files(tmp_path, name)
    before = out.read_bytes()
    driver = FakeDriver()
    summary = run(options(tmp_path / "in.jsonl", out=out, read={"defaults": {"max_tokens": 4}}, pack="off"), driver)
    assert summary is not None
    assert summary.exit_code == 0
    assert out.read_bytes().startswith(before)
    assert len(driver.asked) == formats.LINES - before.count(b"\n")
    assert sorted(identities(out)) == IDS


@pytest.mark.parametrize("name", ["redis-queued.json", "redis-running.json", "redis-results.json"])
def test_what_version_1_left_in_redis_is_carried_on_with(
    tmp_path: Path, valkey: Valkey, gateway: GatewayProcess, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Messages, run ledger and the admission's state. Its worker is gone, and so is its submitter."""
    out = files(tmp_path, "partial")
    if name != "redis-results.json":
        out.unlink()
    recorded = formats.read(name)
    with redis.Redis(port=valkey.port) as client:
        formats.load(client, recorded)
    gateway.reset()
    # What the dead worker may have started counts for a window.
    quick: dict[str, Any] = {"window_s": 5.0, "visibility_timeout_s": 3}
    with fleet(monkeypatch, gateway, workers=1, key=formats.KEY, redis_url=valkey.url, **quick) as it:
        done = brimful("run", tmp_path / "in.jsonl", "-o", out, *ASKED, **_env(it))
        assert done.returncode == 0, done.stderr
        assert it.app.AsyncResult("s").get(timeout=60)["choices"]
    assert sorted(identities(out)) == IDS
    stored = sum(len(value) for key, (_, value, _) in recorded.items() if key.endswith(":results"))
    asked = {"redis-queued.json": formats.LINES + 1}.get(name, formats.LINES + 1 - stored)
    assert gateway.ledger()["arrivals"] <= asked


def _env(it: Fleet) -> dict[str, str]:
    return {"ACS_API_BASE": it.gateway.url, "ACS_API_KEY": formats.KEY, "BRIMFUL_REDIS_URL": it.local.redis_url}


def test_todays_files_name_their_version(tmp_path: Path) -> None:
    out = files(tmp_path, "partial")
    sidecar = tmp_path / "out.jsonl.run.json"
    assert json.loads(sidecar.read_text())["version"] == FILES == 1
    sidecar.write_text(json.dumps({**json.loads(sidecar.read_text()), "version": 2, "later": {}}))
    with pytest.raises(VersionMismatch, match=r"out\.jsonl\.run\.json has version 2 .* reads up to 1: .*--fresh"):
        Sidecar.load(sidecar)
    done = brimful("run", tmp_path / "in.jsonl", "-o", out, *ASKED, "--rehearse")
    assert done.returncode == 2
    assert "has version 2 of its format; this brimful reads up to 1" in done.stderr
    assert out.read_bytes() == (V1 / "partial.jsonl").read_bytes()


def test_a_run_that_a_later_release_began_is_refused(
    tmp_path: Path, valkey: Valkey, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, gateway: GatewayProcess
) -> None:
    out = files(tmp_path, "partial")
    with redis.Redis(port=valkey.port) as raw:
        formats.load(raw, formats.read("redis-results.json"))
    keys = Keys(json.loads((tmp_path / "out.jsonl.run.json").read_text())["run"])
    client.set(keys.schema, LEDGER + 1)
    before = client.xlen(keys.results)
    assert before
    env = {"ACS_API_BASE": gateway.url, "ACS_API_KEY": formats.KEY, "BRIMFUL_REDIS_URL": valkey.url}
    done = brimful("run", tmp_path / "in.jsonl", "-o", out, *ASKED, **env)
    assert done.returncode == 2, done.stderr
    assert "what Redis holds of this run has version 2 of its format; this brimful reads up to 1" in done.stderr
    assert client.xlen(keys.results) == before


def test_messages_of_a_later_release_are_refused_by_name(
    valkey: Valkey, client: redis.Redis, gateway: GatewayProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single request fails; so does each request of a shard, and the run records it."""
    gateway.reset()
    with fleet(monkeypatch, gateway, workers=1, redis_url=valkey.url) as it:
        app: Celery = it.app
        late = app.send_task("brimful.sample", ["hi"], {"max_tokens": 4}, queue="batch", headers={HEADER: MESSAGES + 1})
        with pytest.raises(
            VersionMismatch, match=r"task's message has version 2 of its format; this brimful reads up to 1"
        ):
            late.get(timeout=60)
        assert app.send_task("brimful.sample", ["ho"], {"max_tokens": 4}, queue="batch", headers={HEADER: 1}).get(
            timeout=60
        )
        keys = Keys("later")
        units = [[1, "p0", 0, [0]]]
        client.hset(keys.shard("s1"), "r1", json.dumps(units))
        client.zadd(keys.shards, {"s1": 1})
        entry = {"id": "r1", "units": units, "request": {"later": True}, "schema": MESSAGES + 1}
        app.send_task("brimful.shard", ["later", "s1", [entry]], queue="batch")
        [(_, entries)] = client.xread({keys.results: "0"}, block=60_000)
        failure = json.loads(entries[0][1]["outcome"])["failure"]
    assert failure["cause"] == "version"
    assert "has version 2 of its format; this brimful reads up to 1" in failure["message"]
    assert not failure["permanent"]
    assert gateway.ledger()["arrivals"] == 1


def test_fields_that_a_later_release_adds_are_ignored() -> None:
    """It need not raise a version for them. Of results (``test_singles_once``) and what workers publish of the provider
    (``test_client_provider``) other tests show the same."""
    outcome = Outcome("q", failure=Failure(Cause.TIMEOUT, "late", 504), attempts=2, provider_request_ids=["r"])
    message = outcome.as_message()
    message["failure"] |= LATER
    assert Outcome.from_message(message | LATER) == outcome
    row = {"id": "q", "units": "[]", "outcome": json.dumps(message | LATER), "later": "x"}
    assert parse_results([["k", [("1-0", row)]]], "k") == [Result("1-0", "q", "[]", outcome)]

    entry: dict[str, Any] = {"id": "q", "units": [], "request": {"prompt": "a"}, "weight": 2.0, **LATER}
    body = json.dumps([["r", "s", [entry]], LATER, LATER])
    queued = {"headers": {"task": TASK_SHARD, **LATER}, "properties": LATER, "body": body, **LATER}
    assert parse_message(json.dumps(queued)) == ShardMessage("r", "s", [entry])
    assert weight_of(entry) == 2.0

    assert parse_entry("r", {"done": "3", "later": "x"}, 9.0) == parse_entry("r", {"done": "3"}, 9.0)
    record = {"version": 1, "name": "ann", "digest": "d", "created": 1.0, "budget_tokens": 5}
    assert parse_record(json.dumps(record | LATER).encode()) == CallerRecord("ann", "d", 1.0, budget_tokens=5)
    answers = {ProviderState.OK: LastAnswer(1.0, 2.0)}
    said = {state: json.dumps(json.loads(text) | LATER) for state, text in health_fields(answers).items()}
    assert parse_health(said) == parse_health(health_fields(answers))
    assert limits_from_redis({"slots": "4", "later": "x"}) == {"slots": 4}
    error = SampleError("late", "timeout", {"status": 504, **LATER})
    assert (error.status, str(error)) == (504, "timeout: late")


@pytest.mark.parametrize("found", [None, 1, "1"])
def test_a_version_that_can_be_read(found: object) -> None:
    check_schema("it", found, 1, "")


@pytest.mark.parametrize("found", [0, 2, -1, True, "x", [], 1.0])
def test_a_version_that_cannot_be_read(found: object) -> None:
    with pytest.raises(VersionMismatch, match="it has version"):
        check_schema("it", found, 1, "")
