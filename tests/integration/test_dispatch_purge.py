"""``brimful runs purge`` leaves neither prompts nor completions of a run in Redis, and nothing of it comes back."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
import redis

from brimful.addresses import FleetAddress
from brimful.celery import app_for
from brimful.state.keys import entry_key
from support.commands import Running, brimful, brimful_in_process, write_prompts
from support.fleets import fleet
from support.gateways import gateway_process
from support.waiting import wait_until


def _all_of(client: redis.Redis) -> bytes:
    """Every key and value, and what is encoded in them."""
    found: list[Any] = []
    for key in client.keys("*"):
        kind = client.type(key).decode()
        read = {
            "string": lambda key: client.get(key),
            "list": lambda key: client.lrange(key, 0, -1),
            "hash": lambda key: client.hgetall(key),
            "stream": lambda key: client.xrange(key),
            "zset": lambda key: client.zrange(key, 0, -1),
            "set": lambda key: client.smembers(key),
        }[kind]
        found.append((key, read(key)))
    text = repr(found).encode()
    bodies = re.findall(rb"[A-Za-z0-9+/]{40,}={0,2}", text)  # of messages
    return text + b"".join(base64.b64decode(body) for body in bodies if len(body) % 4 == 0)


@pytest.mark.parametrize("name", ["", "other"])
def test_nothing_of_an_abandoned_run_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    source, out = write_prompts(tmp_path / "in.jsonl", 12), tmp_path / "out.jsonl"
    with (
        gateway_process("--latency", "0", "--per-token", "0", "--faults", "hang:x1") as gateway,
        fleet(monkeypatch, gateway, workers=1, concurrency=2, fleet=name) as there,
        redis.Redis.from_url(there.local.redis_url) as client,
    ):
        url = there.local.redis_url
        env = {"ACS_API_BASE": gateway.url, "ACS_API_KEY": "sk-fleet", "BRIMFUL_REDIS_URL": url, "BRIMFUL_FLEET": name}
        app_for(FleetAddress(url, name)).send_task(
            "brimful.sample", ("a single prompt",), {"max_tokens": 2}, queue="none"
        )
        with Running("run", source, "-o", out, "--pack", "off", "--max-tokens", "4", **env) as run:
            wait_until(lambda: gateway.ledger()["active"] == 1, "one request that hangs", 60)
            listed = brimful_in_process("runs", "list", "--json", **env)
            [stored] = [json.loads(line) for line in listed.stdout.splitlines()]
            assert stored["shards"] >= 1
            refused = brimful_in_process("runs", "purge", stored["run"], **env)
            assert refused.returncode == 2
            assert f"`brimful runs cancel {stored['run']}` ends it" in refused.stderr
            run.process.kill()
            run.process.wait()
            assert b"prompt " in _all_of(client)
            client.hset(entry_key(stored["run"]), "said", 0)  # as if it had been silent for a while
            purged = brimful_in_process("runs", "purge", stored["run"], **env)
            assert purged.returncode == 0, purged.stderr
            wait_until(lambda: gateway.ledger()["active"] == 0, "the worker to stop what it had of it")
            wait_until(lambda: stored["run"].encode() not in _all_of(client), "all of it to be gone")
            assert b"prompt 1" not in _all_of(client)
            assert b"a single prompt" in _all_of(client), "another's task is not touched"
        assert "Redis holds no runs" in brimful_in_process("runs", "list", **env).stderr
        assert brimful_in_process("runs", "purge", "--all", **env).returncode == 0
        assert brimful_in_process("runs", "purge", "nobody", **env).returncode == 2
        again = brimful("run", source, "-o", out, "--pack", "off", "--max-tokens", "4", **env)
        assert again.returncode == 0, again.stderr
