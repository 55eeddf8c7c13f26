"""Long forms of tests: they run under ``BRIMFUL_CHAOS=long`` only."""

from __future__ import annotations

import os

import pytest

LONG = os.environ.get("BRIMFUL_CHAOS") == "long"
"""Read when the tests are collected; the environment is cleaned before each test."""
long_only = pytest.mark.skipif(not LONG, reason="a long test: BRIMFUL_CHAOS=long runs it")


def rounds(short: int, long: int) -> int:
    """How often a fault is repeated."""
    return long if LONG else short
