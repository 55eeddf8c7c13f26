"""The plain client, installed with pip from a built wheel, without the worker's packages."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from brimful.config import Settings
from brimful_worker.local.fleet import LocalFleet
from support.commands import environment
from support.waiting import wait_until

ROOT = Path(__file__).parents[2]
MODULES = {"prometheus-client": "prometheus_client"}
"""Where a module is not called as its package."""

_SERVICE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in {absent}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
import asyncio
import brimful
from brimful import AsyncFleet, Fleet, sample
from brimful.testing import Backend

assert brimful.__file__.startswith({target!r}), brimful.__file__
assert sample.delay("a", max_tokens=2).get(timeout=60)["choices"]
with Fleet() as fleet:
    assert fleet.sample("b", max_tokens=2, timeout=60)["choices"]
    assert len(list(fleet.map(["c", "d"], max_tokens=2))) == 2

async def main():
    async with AsyncFleet() as fleet:
        assert (await fleet.sample("e", max_tokens=2, timeout=60))["choices"]

asyncio.run(main())
with Backend(lambda request: "text"):
    assert sample.delay("f", max_tokens=2).get()["choices"]
print("all sampled")
"""


def test_the_plain_client_of_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, wheels = tmp_path / "installed", tmp_path / "wheels"
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", wheels], cwd=ROOT, check=True)
    (wheel,) = wheels.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", str(target), str(wheel)]
    subprocess.run(pip, check=True)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    packages = [requirement.split(">")[0] for requirement in extras["worker"]]
    absent = {MODULES.get(package, package) for package in packages}
    with LocalFleet(Settings.load(), workers=1, rehearse=True) as local:
        wait_until(lambda: local.ready_workers() >= 1, "a worker", timeout=60)
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", _SERVICE.format(absent=absent, target=str(target))],
            env=environment(BRIMFUL_REDIS_URL=local.redis_url, PYTHONPATH=str(target)),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.stdout == "all sampled\n", done.stderr
