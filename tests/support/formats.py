"""What brimful stores and sends, as fixtures: recorded with the code of any release, and put back into a server.

``python tests/support/formats.py FOLDER [CODE]`` records what the code in CODE (a checkout; default: what is installed)
writes. A new version of a format gets a folder of its own, and the folders of earlier ones stay.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import redis

FOLDER = Path(__file__).parent.parent / "fixtures" / "formats"
KEY = "sk-recorded"
LINES = 12
LATER = {"later": {"of": ["a release to come"]}}
"""A field that no release knows so far."""
_BASE64 = "base64:"


def _pack(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return _BASE64 + base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {_pack(name): _pack(inner) for name, inner in value.items()}
    return [_pack(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _unpack(value: Any) -> Any:
    if isinstance(value, str):
        return base64.b64decode(value.removeprefix(_BASE64)) if value.startswith(_BASE64) else value.encode()
    if isinstance(value, Mapping):
        return {_unpack(name): _unpack(inner) for name, inner in value.items()}
    return [_unpack(inner) for inner in value] if isinstance(value, list) else value


def dump(client: redis.Redis) -> dict[str, Any]:
    """Each key's type, value, and milliseconds to live (-1: no end)."""
    readers: dict[Any, Callable[[Any], Any]] = {
        b"string": client.get,
        b"list": lambda key: client.lrange(key, 0, -1),
        b"set": lambda key: sorted(client.smembers(key)),
        b"hash": client.hgetall,
        b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        b"stream": lambda key: client.xrange(key),
    }
    found = {}
    for key in client.scan_iter():
        kind = client.type(key)
        found[_pack(key)] = [_pack(kind), _pack(readers[kind](key)), client.pttl(key)]
    return found


def load(client: redis.Redis, dumped: Mapping[str, Any]) -> None:
    """The inverse of :func:`dump`."""
    for name, (kind, packed, lives_ms) in dumped.items():
        key, value = _unpack(name), _unpack(packed)
        match kind:
            case "string":
                client.set(key, value)
            case "list":
                client.rpush(key, *value)
            case "set":
                client.sadd(key, *value)
            case "hash":
                client.hset(key, mapping=value)
            case "zset":
                client.zadd(key, dict(value))
            case "stream":
                for entry, fields in value:
                    client.xadd(key, fields, id=entry)
        if lives_ms >= 0:
            client.pexpire(key, lives_ms)


def read(name: str, version: int = 1) -> Any:
    return json.loads((FOLDER / f"v{version}" / name).read_text("utf-8"))


class Recorder:
    """Runs a release's commands against a server and a mock gateway, and keeps what they leave."""

    def __init__(self, folder: Path, code: Path | None, work: Path) -> None:
        self.folder = folder
        self.work = work
        self.env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        self.env |= {"XDG_STATE_HOME": str(work / "state"), "ACS_API_KEY": KEY}
        if code is not None:
            self.env["PYTHONPATH"] = f"{code / 'tasks'}:{code / 'workers'}"
        folder.mkdir(parents=True, exist_ok=True)

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "brimful.cli", *map(str, arguments)]
        return subprocess.Popen(command, env=self.env, cwd=self.work, stdout=subprocess.PIPE, text=True)

    def save(self, name: str, client: redis.Redis) -> None:
        (self.folder / name).write_text(json.dumps(dump(client), indent=1, sort_keys=True) + "\n", "utf-8")

    def copy(self, out: Path, name: str) -> None:
        for path in sorted(out.parent.glob(out.name + "*")):
            (self.folder / f"{name}{path.name.removeprefix(out.name)}").write_bytes(path.read_bytes())

    def record(self) -> None:
        from brimful_worker.local.server.valkey import Valkey
        from support.waiting import wait_until

        source, out = self.work / "in.jsonl", self.work / "out.jsonl"
        rows = [{"id": f"p{place}", "prompt": f"recorded prompt {place}"} for place in range(LINES)]
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        (self.folder / "in.jsonl").write_bytes(source.read_bytes())
        gateway = self.start("gateway", "--port", "0", "--latency", "1.5", "--per-token", "0", "--seed", "3")
        assert gateway.stdout is not None
        self.env["ACS_API_BASE"] = gateway.stdout.readline().strip()
        started = [gateway]
        asked = ("run", source, "-o", out, "--pack", "off", "--max-tokens", "4", "--no-progress")
        try:
            with Valkey(self.work / "valkey") as valkey, redis.Redis(port=valkey.port) as client:
                self.env["BRIMFUL_REDIS_URL"] = valkey.url
                self.env["BRIMFUL_SLOTS"] = "5"
                started.append(run := self.start(*asked))
                wait_until(lambda: client.llen("batch"), "a shard in the queue", 60)
                code = (
                    "import brimful; brimful.sample.apply_async(('recorded single',), {'max_tokens': 4}, task_id='s')"
                )
                subprocess.run([sys.executable, "-c", code], env=self.env, check=True)
                self.save("redis-queued.json", client)
                started.append(worker := self.start("worker", "--name", "recorded"))
                wait_until(
                    lambda: [key for key in client.keys("brimful:*:slots") if client.zcard(key) == 5], "leases", 60
                )
                self.save("redis-running.json", client)
                wait_until(lambda: out.exists() and out.read_bytes().count(b"\n") >= 3, "records", 60)
                run.kill()
                run.wait()
                self.copy(out, "partial.jsonl")
                wait_until(lambda: [key for key in client.keys("*results") if client.xlen(key) >= 4], "results", 60)
                worker.kill()
                worker.wait()
                self.save("redis-results.json", client)
                started.append(self.start("worker", "--name", "recorded"))
                last = self.start(*asked)
                started.append(last)
                assert last.wait(120) == 0
                self.copy(out, "whole.jsonl")
        finally:
            for process in started:
                process.kill()
                process.wait()
                assert process.stdout is not None
                process.stdout.close()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    with tempfile.TemporaryDirectory() as place:
        checkout = Path(sys.argv[2]) if len(sys.argv) > 2 else None
        Recorder(Path(sys.argv[1]), checkout, Path(place)).record()
