"""Neither key nor prompts leak from a fleet at debug level whose provider echoes them in its errors."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import redis
from celery import Celery

from brimful.state.embedded import running_servers
from support.commands import Running, brimful
from support.indiscreet import IndiscreetProvider
from support.processes import command_line, variables
from support.waiting import wait_until

KEY = "sk-canary-9e4b17c3d2"
SECRET = "zebrafinch"
"""In every prompt."""


def test_neither_key_nor_prompts_leak(tmp_path: Path) -> None:
    with IndiscreetProvider() as provider:
        env = {
            "ACS_API_BASE": provider.url,
            "ACS_API_KEY": KEY,
            "BRIMFUL_LOG_LEVEL": "DEBUG",
            "BRIMFUL_BACKOFF_BASE_S": "0.05",
        }
        with Running("up", "--workers", "1", **env) as up:
            output = _until_ready(up)
            (server,) = running_servers().values()
            app = Celery("service", broker=server.url, backend=server.url, set_as_current=False)
            _send_failing_tasks(app)
            slow = [app.send_task("brimful.sample", [f"slow {SECRET} {n}"], {"max_tokens": 4}) for n in range(3)]
            wait_until(lambda: sum(map(provider.asked.get, _slow(provider))) >= 3, "the slow ones on the wire")

            places = {
                "inspect": _inspected(app),
                "flower": "\n".join(_flower(output, slow[0].id)),
                "status": _output(brimful("status", "--json", **env)),
                "doctor": _output(brimful("doctor", **env)),
                "logs": "\n".join(_texts(tmp_path / "state", "*.log")),
                "process list": "\n".join(_command_lines(up.look())),
            }
            assert "DEBUG" in places["logs"], "the logs were not at debug level"
            assert slow[0].id in places["flower"]
            places |= _redis_values(server.url)
            places |= _run(tmp_path / "run", {**env, "BRIMFUL_REDIS_URL": server.url})
            provider.release.set()
            for result in slow:
                assert result.get(timeout=60)["choices"]
            places["logs, later"] = "\n".join(_texts(tmp_path / "state", "*.log"))
            places["files"] = "\n".join(_texts(tmp_path / "state", "*"))  # the append-only file and hub.json among them
            assert "appendonly" in str(list((tmp_path / "state").rglob("*"))), "where is the append-only file?"
            without_key = [process for process in up.family if "worker" not in command_line(process)]
            assert [p for p in without_key if KEY in variables(p).values()] == []
            app.close()
            assert up.interrupt() == 0
            assert up.process.stdout is not None
            places["up's output"] = output + up.process.stdout.read()
    leaks = [place for place, text in places.items() if KEY in text or _in_base64(KEY, text)]
    assert leaks == [], f"the key is in: {leaks}"
    may_hold = {
        "files",
        "run's files",
        *(place for place in places if re.match(r"redis (interactive|batch|celery|unacked)\b", place)),
    }
    leaks = [place for place, text in places.items() if SECRET in text or _in_base64(SECRET, text)]
    assert set(leaks) <= may_hold, f"prompts are in: {set(leaks) - may_hold}"
    assert any(place.startswith("redis unacked") for place in leaks), "the search misses a prompt that must be there"


def _send_failing_tasks(app: Celery) -> None:
    """Tasks that end in every way; returns when they have."""
    asked = [
        app.send_task("brimful.sample", [f"{word} {SECRET}"], {"max_tokens": 4, **more}, queue="batch")
        for word in ("ok", "html", "junk", "bad", "refused")
        for more in ({}, {"mode": "chat"})
    ]
    asked += [
        app.send_task("brimful.sample", [f"ok {SECRET}"], {"max_tokens": -1}),
        app.send_task("brimful.sample", [{"prompt": [SECRET, 1]}]),
        app.send_task("brimful.sample", [f"ok {SECRET}", 2, 3]),
        app.send_task("brimful.sample", [f"ok {SECRET}"], {"mode": "telepathy"}),
        app.send_task("brimful.sample", [f"ok {SECRET}"], {"model": f"{SECRET} \ud800"}),
        app.send_task("brimful.no_such_task", [f"ok {SECRET}"]),
        app.send_task("brimful.shard", ["run", "shard", [{"id": "1", "request": {"prompt": SECRET}}]]),
    ]
    for result in asked[:-2]:
        result.get(timeout=30, propagate=False)


def _run(folder: Path, env: dict[str, str]) -> dict[str, str]:
    folder.mkdir()
    prompts = folder / "prompts.txt"
    prompts.write_text("".join(f"{word} {SECRET} of a run\n" for word in ("ok", "bad", "html", "junk")))
    done = brimful("run", prompts, "-o", folder / "out.jsonl", "--pack", "off", "--max-tokens", "4", "--json", **env)
    assert done.returncode == 3, done.stderr
    report = brimful("report", folder / "out.jsonl", **env)
    files = "\n".join(_texts(folder, "*"))
    assert files.count(SECRET) > 4, "the failed request is recorded with its prompt"
    return {"run's output": _output(done), "report's output": _output(report), "run's files": files}


def _slow(provider: IndiscreetProvider) -> list[str]:
    return [prompt for prompt in list(provider.asked) if prompt.startswith("slow")]


def _until_ready(up: Running) -> str:
    assert up.process.stdout is not None
    lines: list[str] = []
    for line in up.process.stdout:
        lines.append(line)
        if "ready after" in line:
            return "".join(lines)
    raise AssertionError("".join(lines))


def _inspected(app: Celery) -> str:
    inspect = app.control.inspect(timeout=60, limit=1)
    asked = ("active", "reserved", "scheduled", "stats", "conf", "report", "registered", "revoked", "active_queues")
    found: dict[str, Any] = {name: getattr(inspect, name)() for name in asked}
    assert found["active"]
    return json.dumps(found, default=str)


def _flower(output: str, task: str) -> Iterator[str]:
    """Every page of Flower and every answer of its API about tasks, workers and the broker."""
    found = re.search(r"Flower\s+(\S+)\s+user (\S+), password (\S+)", output)
    assert found, output
    url, user, password = found.groups()
    login = base64.b64encode(f"{user}:{password}".encode()).decode()

    def get(path: str) -> str:
        request = urllib.request.Request(url + path, headers={"Authorization": f"Basic {login}"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            return error.read().decode()

    wait_until(lambda: task in get("/api/tasks"), "Flower to know the task")
    workers = json.loads(get("/api/workers?refresh=1"))
    assert len(workers) == 1
    yield json.dumps(workers)
    tasks = json.loads(get("/api/tasks?limit=1000"))
    yield json.dumps(tasks)
    for path in ("/", "/workers", "/tasks", "/broker", "/metrics", "/api/queues/length", "/api/task/types"):
        yield get(path)
    for name in workers:
        yield get(f"/worker/{name}")
    for id in tasks:
        yield get(f"/task/{id}")
        yield get(f"/api/task/info/{id}")
        yield get(f"/api/task/result/{id}?timeout=0.1") if tasks[id]["state"] in ("SUCCESS", "FAILURE") else ""


def _redis_values(url: str) -> dict[str, str]:
    """Every key's name and value, as ``redis NAME`` → text."""
    readers = {
        "string": lambda client, key: client.get(key),
        "list": lambda client, key: client.lrange(key, 0, -1),
        "set": lambda client, key: client.smembers(key),
        "zset": lambda client, key: client.zrange(key, 0, -1),
        "hash": lambda client, key: client.hgetall(key),
        "stream": lambda client, key: client.xrange(key),
    }
    found = {}
    with redis.Redis.from_url(url) as client:
        for key in client.scan_iter(count=1000):
            kind = client.type(key).decode()
            if kind != "none":
                found[f"redis {key.decode()}"] = f"{key!r} {readers[kind](client, key)!r}"
        found["redis's own"] = repr((client.client_list(), client.info("all"), client.config_get("*")))
    assert len(found) > 10
    return found


def _texts(root: Path, pattern: str) -> Iterator[str]:
    for path in root.rglob(pattern):
        if path.is_file():
            yield path.read_bytes().decode("utf-8", "replace")


def _command_lines(processes: Iterable[psutil.Process]) -> Iterator[str]:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            yield " ".join(process.cmdline()) + process.name()


def _output(done: Any) -> str:
    return str(done.stdout + done.stderr)


def _in_base64(word: str, text: str) -> bool:
    """Message bodies are base64: the word starts at one of three offsets within a group."""
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + word.encode()).decode()
        begin, end = (0, 2, 3)[shift], len(encoded) - (4 if (shift + len(word)) % 3 else 0)
        if encoded[begin:end] in text:
            return True
    return False
