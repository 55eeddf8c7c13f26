"""The examples, each run as a process against a real fleet and the mock gateway."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from brimful.config import Settings
from brimful_worker.local.fleet import LocalFleet

EXAMPLES = Path(__file__).parents[2] / "examples"
OTHERS = ("demo", "limiter_")
"""Examples that other tests run."""
SERVICES = sorted(path.name for path in EXAMPLES.glob("*.py") if not path.name.startswith(OTHERS))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    settings = Settings.load(state_dir=tmp_path_factory.mktemp("examples"))
    with LocalFleet(settings, workers=1, rehearse=True) as started:
        yield started


@pytest.mark.parametrize("name", SERVICES)
def test_an_example_prints_completions(fleet: LocalFleet, name: str, tmp_path: Path) -> None:
    environment = {**os.environ, "BRIMFUL_REDIS_URL": fleet.redis_url}
    if name == "limits_only.py":
        assert fleet.gateway_url is not None
        environment |= {"ACS_API_BASE": fleet.gateway_url, "ACS_API_KEY": "any"}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    fleet.check()
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 2
    assert not done.stderr
