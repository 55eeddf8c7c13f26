"""Status and limits as read from a real Valkey that workers of several versions and keys have written to."""

from __future__ import annotations

import json

import redis

from brimful.state.keys import admission_key
from brimful.state.status import read_status
from brimful_worker.local.server.valkey import Valkey


def test_fields_and_limits_of_a_newer_version_are_ignored(valkey: Valkey) -> None:
    newer = {"name": "a", "host": "h", "pid": 7, "interactive": 1, "zone": "eu"}
    with redis.Redis.from_url(valkey.url, decode_responses=True) as client:
        client.hset(admission_key("t", "defaults"), mapping={"slots": "16", "window_ms": "60000", "shape": "round"})
        client.hset(admission_key("t", "limits"), mapping={"slots": "8", "rev": "1", "shape": "square"})
        client.zadd(admission_key("t", "heard"), {"p1": 0, "p2": 0})
        client.hset(admission_key("t", "workers"), mapping={"p1": json.dumps(newer), "p2": json.dumps({"pid": 8})})
        status = read_status(client, "t")
    assert status.limits == {"slots": 8, "window_s": 60}
    assert status.overridden == ("slots",)
    described = [(each.process, each.name, each.pid, each.interactive) for each in status.workers]
    assert described == [("p2", "?", 8, 0), ("p1", "a", 7, 1)]
