"""A short storm over the limits, by fixed seeds; ``make chaos`` runs an hour of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.commands import environment

TESTS = Path(__file__).parents[1]
SEED, SECONDS = 5, 15


@pytest.mark.timeout(300)
def test_a_short_storm_keeps_the_limits(tmp_path: Path) -> None:
    """A process of its own, so that nothing but the ledger runs on its event loop."""
    storm = subprocess.run(
        [sys.executable, "-m", "support.limits_storm", "--seed", str(SEED), "--seconds", str(SECONDS)],
        env=environment(PYTHONPATH=str(TESTS), TMPDIR=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=290,
    )
    assert storm.returncode == 0, storm.stderr
