"""The short storm of all faults with RabbitMQ as the broker; ``support.storm --rabbitmq`` runs longer ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.commands import environment
from support.rabbitmq import NEEDS_RABBITMQ

TESTS = Path(__file__).parents[1]
SEED, SECONDS = 12, 30


@pytest.mark.compat
@pytest.mark.timeout(500)
@NEEDS_RABBITMQ
def test_a_short_storm_of_all_faults_leaves_nothing_undone(tmp_path: Path) -> None:
    flags = ("--seed", str(SEED), "--seconds", str(SECONDS), "--workers", "2", "--visibility", "5", "--lines", "50")
    storm = subprocess.run(
        [sys.executable, "-m", "support.storm", "--rabbitmq", *flags],
        env=environment(PYTHONPATH=str(TESTS), TMPDIR=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=490,
    )
    assert storm.returncode == 0, storm.stderr
