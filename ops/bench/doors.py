"""The contenders of door.py: `brimful serve`, and litellm's proxy in an environment of its own."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import redis
from peers import python_with
from pydantic import SecretStr

from brimful.config import Settings
from brimful_worker.admission import mark_clean
from brimful_worker.local.server.valkey import Valkey, free_port

ROOT = Path(__file__).parents[2]
REQUIREMENTS = Path(__file__).with_name("door-requirements.txt")
KEY = "sk-bench"
_READY_S = 120.0
_OURS = ("BRIMFUL_", "ACS_", "KIOS_", "OPENAI_", "LITELLM_")


@dataclass
class Doors:
    """Servers that are ready, and what they have used. URLs end in ``/v1``."""

    urls: list[str]
    processes: list[psutil.Process]
    server: Valkey
    key: str
    """What clients send."""

    def cpu_s(self) -> float:
        family = [child for each in self.processes for child in (each, *each.children(recursive=True))]
        return sum(sum(each.cpu_times()[:2]) for each in family)

    def redis_cpu_s(self) -> float:
        with redis.Redis.from_url(self.server.url) as client:
            used: Any = client.info("cpu")
        return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


Start = Callable[[int, Valkey, str, int, int, float, Path], AbstractContextManager[Doors]]
"""Processes, server, gateway's URL, slots, starts, seconds of the window, a folder for files."""


@contextmanager
def brimful(
    count: int, server: Valkey, url: str, slots: int, starts: int, window_s: float, folder: Path
) -> Iterator[Doors]:
    env = {"BRIMFUL_REDIS_URL": server.url, "ACS_API_BASE": url, "ACS_API_KEY": KEY}
    env |= {"BRIMFUL_SLOTS": str(slots), "BRIMFUL_STARTS": str(starts), "BRIMFUL_WINDOW_S": str(window_s)}
    env |= {"BRIMFUL_STATE_DIR": str(folder / "state")}
    with redis.Redis.from_url(server.url) as client:
        mark_clean(client, _tag())  # as a fleet does with a server that it has started
    command = [sys.executable, "-m", "brimful.cli", "serve", "--port", "{port}"]
    with _running([command] * count, env, "/readyz", server, folder, "any") as doors:
        yield doors


def _tag() -> str:
    """By which Redis knows the key."""
    settings = Settings.load()
    settings.__dict__["api_key"] = SecretStr(KEY)
    return settings.key_tag


def litellm(commands: Path) -> Start:
    """``commands``: the folder with its programs."""

    @contextmanager
    def start(
        count: int, server: Valkey, url: str, slots: int, starts: int, window_s: float, folder: Path
    ) -> Iterator[Doors]:
        place = urlsplit(server.url)
        limits = {"max_parallel_requests": slots, "rpm": round(starts * 60 / window_s)}
        model = {"model": "openai/llama-8b", "api_base": url, "api_key": KEY, **limits}
        router = {"redis_host": place.hostname, "redis_port": place.port, "redis_password": place.password}
        config = folder / "litellm.yaml"
        config.write_text(
            json.dumps({"model_list": [{"model_name": "llama-8b", "litellm_params": model}], "router_settings": router})
        )
        command = [str(commands / "litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", "{port}"]
        master = f"sk-{secrets.token_hex(32)}"
        env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False", "LITELLM_MASTER_KEY": master}
        with _running([command] * count, env, "/health/liveliness", server, folder, master) as doors:
            yield doors

    return start


@contextmanager
def _running(
    commands: list[list[str]], env: dict[str, str], path: str, server: Valkey, folder: Path, key: str
) -> Iterator[Doors]:
    """Servers on free ports, which answer ``path`` with 200. Raises SystemExit."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    with ExitStack() as stack:
        doors, started = Doors([], [], server, key), []
        for number, command in enumerate(commands):
            port = free_port()
            log = stack.enter_context((folder / f"door-{number}.log").open("ab"))
            process = subprocess.Popen(
                [part.format(port=port) for part in command],
                env=kept | env | {"HOME": str(folder)},
                stdout=log,
                stderr=log,
                cwd=folder,
            )
            stack.callback(_end, process)
            started.append((f"http://127.0.0.1:{port}{path}", process, log.name))
            doors.urls.append(f"http://127.0.0.1:{port}/v1")
            doors.processes.append(psutil.Process(process.pid))
        for url, process, name in started:
            _until_ready(url, process, name)
        yield doors


def _until_ready(url: str, process: subprocess.Popen[bytes], log: str) -> None:
    end = time.monotonic() + _READY_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10):
                return
        except (urllib.error.URLError, OSError):
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"it does not answer at {url}: {Path(log).read_text()[-2000:]}") from None
            time.sleep(0.2)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def litellm_commands() -> Path:
    """The folder of litellm's programs, installed once a version. Raises OSError if it cannot be."""
    try:
        return python_with(REQUIREMENTS, ROOT / ".bench" / "litellm", sys.executable).parent
    except subprocess.CalledProcessError as error:
        raise OSError(f"{error.cmd} exited with {error.returncode}") from error


def litellm_version(commands: Path) -> str:
    code = "import importlib.metadata as m; print(m.version('litellm'))"
    answer = subprocess.run([str(commands / "python"), "-c", code], check=True, capture_output=True, text=True)
    return answer.stdout.strip()
