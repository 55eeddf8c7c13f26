"""Throw-away virtual environments with packages of PyPI, for tests beside foreign tools. Those are marked compat."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_UNTIL = "2026-12-02"
"""Releases of dependencies that are newer are not considered, so that each time the same ones are installed."""
_TIMEOUT_S = 240.0


def environment_with(folder: Path, *requirements: str) -> Path:
    """Make an environment of this Python in ``folder``; returns its folder of commands.

    Skips the test with uv's reason where the packages cannot be installed.
    """
    _uv("venv", "--quiet", "--python", sys.executable, str(folder))
    commands = folder / "bin"
    to = ("--python", str(commands / "python"))
    _uv("pip", "install", "--quiet", "--system-certs", "--exclude-newer", _UNTIL, *to, *requirements)
    return commands


def _uv(*arguments: str) -> None:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "uv", *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"uv {arguments[0]} took longer than {_TIMEOUT_S:.0f} s")
    if done.returncode:
        reason = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        pytest.skip(f"uv {' '.join(arguments[:2])}: {reason[:300]}")
