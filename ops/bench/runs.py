"""`brimful run` against the mock gateway, with samples of the memory that its processes use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import redis

from brimful.state.embedded import running_servers

_GATEWAY = """
import json, sys
from brimful_worker.gateway import Gateway, GatewayOptions
from brimful_worker.gateway.process import serve
gateway = Gateway(GatewayOptions(**json.loads(sys.argv[1])))
serve(gateway, host="127.0.0.1", port=0, ready=lambda gateway: print(gateway.url, flush=True))
"""


@contextmanager
def gateway(**options: Any) -> Iterator[str]:
    """Run a mock gateway; yields its URL, which ends in /v1. ``options`` are fields of GatewayOptions."""
    command = [sys.executable, "-c", _GATEWAY, json.dumps(options)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def ledger(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url.removesuffix("/v1") + "/ledger", timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


@dataclass(frozen=True)
class Look:
    """A sample: memory in MB, ``at_s`` seconds after the command began."""

    at_s: float
    written: int
    """Bytes of output."""
    submitter: float
    redis: float
    """``used_memory``"""
    worker: float
    """Of the largest worker."""


@dataclass
class Run:
    """A run that has ended."""

    summary: dict[str, Any]
    seconds: float
    """Of the whole command: reading the input, starting the fleet, sampling."""
    looks: list[Look] = field(default_factory=list)


def run(
    prompts: Path,
    out: Path,
    url: str,
    *arguments: str,
    env: dict[str, str] | None = None,
    look_s: float | None = None,
    on_look: Callable[[Look], None] = lambda look: None,
) -> Run:
    """Run it to its end. Its state directory is beside ``out`` and shared with no other run. Raises SystemExit."""
    names = ("BRIMFUL_", "ACS_", "KIOS_", "OPENAI_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    state = out.parent / "state"
    environment |= {"ACS_API_BASE": url, "ACS_API_KEY": "sk-bench", "BRIMFUL_STATE_DIR": str(state), **(env or {})}
    command = [sys.executable, "-m", "brimful.cli", "run", str(prompts), "-o", str(out), "--json", "--no-progress"]
    began = time.monotonic()
    process = subprocess.Popen(
        [*command, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    looks: list[Look] = []
    try:
        while process.poll() is None:
            try:
                process.wait(look_s or 3600)
            except subprocess.TimeoutExpired:
                if (look := _look(process.pid, began, out, state)) is not None:
                    looks.append(look)
                    on_look(look)
        printed, errors = process.communicate()
    except BaseException:
        process.kill()
        process.wait()
        raise
    seconds = time.monotonic() - began
    if process.returncode:
        raise SystemExit(f"brimful run ended with {process.returncode}: {errors.strip()[-2000:]}")
    return Run(json.loads(printed), seconds, looks)


def _look(pid: int, began: float, out: Path, state: Path) -> Look | None:
    with suppress(psutil.Error, redis.RedisError, OSError):
        submitter = psutil.Process(pid)
        workers = [child for child in submitter.children() if "worker" in child.cmdline()]
        used = 0
        for server in running_servers(state).values():
            with redis.Redis.from_url(server.url, socket_timeout=5) as client:
                used = int(client.info("memory")["used_memory"])
        return Look(
            at_s=round(time.monotonic() - began, 1),
            written=out.stat().st_size if out.exists() else 0,
            submitter=_mb(submitter.memory_info().rss),
            redis=_mb(used),
            worker=_mb(max([worker.memory_info().rss for worker in workers], default=0)),
        )
    return None


def _mb(count: int) -> float:
    return round(count / 2**20, 1)
