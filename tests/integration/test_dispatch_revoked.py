"""A shard's task is revoked under its run: its lines are recorded as cancelled, and the run ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import redis
from celery import Celery

from brimful.addresses import FleetAddress
from brimful.celery import app_for
from brimful.state.keys import run_key
from support.commands import Running, brimful, records, write_prompts
from support.fleets import fleet
from support.gateways import gateway_process
from support.waiting import wait_until


def _shards(client: redis.Redis, name: str) -> list[str]:
    """The shards with a key of this name (``shard`` or ``claim``)."""
    return [key.rpartition(":")[2] for key in client.keys(f"{run_key('*', name)}:*")]


@pytest.mark.parametrize(("by", "terminate", "name"), [("brimful", False, "other"), ("a stranger", True, "")])
def test_its_lines_are_recorded_as_cancelled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, by: str, terminate: bool, name: str
) -> None:
    ids = [f"p{line}" for line in range(9)]
    source, out = write_prompts(tmp_path / "in.jsonl", len(ids)), tmp_path / "out.jsonl"
    with (
        gateway_process("--latency", "600", "--per-token", "0") as gateway,
        fleet(monkeypatch, gateway, workers=1, concurrency=1, slots=2, fleet=name) as there,
        redis.Redis.from_url(there.local.redis_url, decode_responses=True) as client,
    ):
        env = {"ACS_API_BASE": gateway.url, "ACS_API_KEY": "sk-fleet", "BRIMFUL_REDIS_URL": there.local.redis_url}
        env["BRIMFUL_FLEET"] = name
        arguments = ("run", source, "-o", out, "--pack", "off", "--max-tokens", "4", "--json")
        app = (
            app_for(FleetAddress(there.local.redis_url, name))
            if by == "brimful"
            else Celery("x", broker=there.local.redis_url)
        )
        with Running(*arguments, **env) as run, app:
            wait_until(lambda: len(_shards(client, "shard")) >= 2, "two shards")
            [begun] = wait_until(lambda: _shards(client, "claim"), "one to run")
            waiting = next(shard for shard in _shards(client, "shard") if shard != begun)
            app.control.revoke(waiting, terminate=terminate)
            wait_until(lambda: gateway.ledger()["active"], "it to be on the wire")
            gateway.set_options(latency_s=0.0)  # of the next requests
            app.control.revoke(begun, terminate=True)
            output, _ = run.process.communicate(timeout=90)
        assert run.process.returncode == 3, output
        summary = json.loads(output.splitlines()[-1])
        failed = records(tmp_path / "out.jsonl.errors.jsonl")
        assert (summary["succeeded"], summary["failed"]) == (len(ids) - len(failed), len(failed))
        assert {record["cause"] for record in failed} == {"cancelled"}
        assert {record["message"].split()[2] for record in failed} == {begun, waiting}
        assert sorted(record["id"] for record in [*failed, *records(out)]) == ids
        again = brimful(*arguments, "--retry-errors", **env)
        assert again.returncode == 0, again.stderr
        assert sorted(record["id"] for record in records(out)) == ids
