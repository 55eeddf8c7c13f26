"""A service that forks after it has used its fleet: gunicorn ``--preload``, and ``os.fork``."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from brimful.config import Settings
from brimful_worker.local.fleet import LocalFleet
from support.commands import environment
from support.waiting import wait_until

_FORKS = """
import asyncio, os, sys
import brimful
from brimful import AsyncFleet, Fleet

fleet, later = Fleet(), AsyncFleet()
handle = brimful.sample.delay("enqueued before the fork", max_tokens=2)

def use():
    for place in range(3):
        assert fleet.sample(f"prompt {place}", max_tokens=2, timeout=60)["choices"]
        assert brimful.sample.delay(f"prompt {place}", max_tokens=2).get(timeout=60)["choices"]
    assert [len(one.texts) for one in fleet.map(map(str, range(20)), max_tokens=2, n=2)] == [2] * 20

async def use_async():
    completions = await asyncio.gather(*(later.sample(str(place), max_tokens=2, timeout=60) for place in range(4)))
    assert all(completion["choices"] for completion in completions)
    assert [len(one.texts) async for one in later.map(map(str, range(20)), max_tokens=2)] == [1] * 20

use()
asyncio.run(use_async())
running = fleet.map(map(str, range(400)), max_tokens=2)
next(running)
children = []
for _ in range(2):
    if not (pid := os.fork()):
        del running
        use()
        asyncio.run(use_async())
        assert handle.get(timeout=60)["choices"]
        fleet.close()
        sys.exit(0)
    children.append(pid)
assert sum(1 for _ in running) == 399
use()
assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 2
print("parent and children are well")
"""
_APP = """
from brimful import Fleet

fleet = Fleet()
fleet.sample("used before the fork", max_tokens=2, timeout=60)
[one.text for one in fleet.map(["used before the fork"], max_tokens=2)]

def app(environ, respond):
    prompt = environ["PATH_INFO"]
    if prompt.endswith("0"):
        [one] = fleet.map([prompt], max_tokens=2)
        text = one.text
    else:
        text = fleet.sample(prompt, max_tokens=2, timeout=60)["choices"][0]["text"]
    respond("200 OK", [("Content-Type", "text/plain")])
    return [text.encode()]
"""
REQUESTS = 80


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = Settings.load(state_dir=tmp_path_factory.mktemp("state"))
    with LocalFleet(settings, workers=1, rehearse=True, gateway_options={"latency_s": 0.0}) as local:
        wait_until(lambda: local.ready_workers() >= 1, "a worker", timeout=60)
        yield local.redis_url


def test_children_and_their_parent_use_the_fleet(url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORKS],
        env=environment(BRIMFUL_REDIS_URL=url),
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.stdout == "parent and children are well\n", done.stderr
    assert done.returncode == 0


_HELD = """
import os, signal, threading
from celery import Celery
from brimful.addresses import FleetAddress
from brimful.celery import app_for

app = app_for(FleetAddress("redis://127.0.0.1:1/0"))
held, done = threading.Event(), threading.Event()

def use():
    with vars(Celery)["amqp"].lock:
        held.set()
        done.wait()

threading.Thread(target=use, daemon=True).start()
held.wait()
if not (pid := os.fork()):
    signal.alarm(30)
    app.amqp
    os._exit(0)
status = os.waitpid(pid, 0)[1]
done.set()
print(status)
"""


def test_a_child_does_not_wait_for_what_a_thread_of_its_parent_used() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", _HELD], capture_output=True, text=True, timeout=120)
    assert done.stdout == "0\n", done.stderr


def test_gunicorn_with_preload_answers_every_request(url: str, tmp_path: Path) -> None:
    (tmp_path / "service.py").write_text(_APP)
    flags = ["--preload", "--workers", "2", "--threads", "2", "--bind", "127.0.0.1:0", "--timeout", "120"]
    log = tmp_path / "gunicorn.log"
    with log.open("w") as output:
        gunicorn = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", *flags, "service:app"],
            env=environment(BRIMFUL_REDIS_URL=url),
            cwd=tmp_path,
            stderr=output,
        )
    try:
        said = wait_until(lambda: "Listening at" in (text := log.read_text()) and text, "gunicorn", 60)
        root = "http://127.0.0.1:" + said.split("http://127.0.0.1:")[1].split()[0]

        def ask(place: int) -> int:
            with urllib.request.urlopen(f"{root}/{place}", timeout=120) as answer:
                return int(answer.status) if answer.read() else 0

        with ThreadPoolExecutor(16) as threads:
            statuses = list(threads.map(ask, range(REQUESTS)))
    finally:
        gunicorn.terminate()
        gunicorn.wait(60)
    assert statuses == [200] * REQUESTS, log.read_text()[-3000:]
