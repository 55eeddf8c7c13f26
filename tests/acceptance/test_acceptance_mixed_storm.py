"""A quarter of a minute of every fault, by a fixed seed; ``make chaos MINUTES= SEED=`` runs longer ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.commands import environment

TESTS = Path(__file__).parents[1]
SEED, SECONDS = 12, 15


@pytest.mark.timeout(400)
def test_a_short_storm_of_all_faults_leaves_nothing_undone(tmp_path: Path) -> None:
    """A process of its own: the storm is a client, and its settings are the environment's."""
    flags = ("--seed", str(SEED), "--seconds", str(SECONDS), "--workers", "2", "--visibility", "5", "--lines", "25")
    storm = subprocess.run(
        [sys.executable, "-m", "support.storm", *flags],
        env=environment(PYTHONPATH=str(TESTS), TMPDIR=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=390,
    )
    assert storm.returncode == 0, storm.stderr
