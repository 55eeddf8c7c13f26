"""What the worker needs beside a plain install is checked before anything starts."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from brimful.errors import UsageError
from brimful.runtime.extras import LOCAL_FLEET, missing, worker_module

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
FOR_INPUTS = {"zstandard"}
"""Installed with the worker for convenience: `brimful run` reads .zst files with it."""


def test_missing_modules_are_named_together() -> None:
    assert missing() == []
    with pytest.raises(UsageError, match=r"a fleet needs no_such_part, nor_this: pip install 'brimful\[worker\]'"):
        worker_module("local.fleet", "a fleet", ("no_such_part", "orjson", "nor_this"))


def test_the_modules_checked_are_those_that_the_worker_extra_installs() -> None:
    extra = tomllib.loads(PROJECT.read_text("utf-8"))["project"]["optional-dependencies"]["worker"]
    installed = {requirement.partition(">")[0].replace("-", "_") for requirement in extra}
    assert set(LOCAL_FLEET) == installed - FOR_INPUTS
