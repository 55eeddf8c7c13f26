"""Canaries for undocumented parts of upstream libraries: a test fails when a release changes one that we use."""

from __future__ import annotations

import hashlib
import importlib
import inspect
from importlib.metadata import version
from typing import Any

import pytest


def check(part: str, digest: str, *, read_in: str, used_by: str) -> None:
    """Fails unless the source of ``part`` (``package.module:Class.method``) has this digest.

    ``read_in`` is the distribution and version in which we read it (``aiohttp 3.14.5``), ``used_by`` our one module
    that uses it.
    """
    distribution = read_in.split()[0]
    try:
        found = source_digest(part)
    except (ImportError, AttributeError) as error:
        found = f"missing: {error}"
    if found != digest:
        pytest.fail(
            f"{part} is not what it was in {read_in} (installed: {version(distribution)}, digest {found}). Read it "
            f"again, adapt {used_by} if it must, then record the new version and digest in both places.",
            pytrace=False,
        )


def source_digest(part: str) -> str:
    """Twelve hex digits of a class's or function's source, blank lines and comments aside."""
    module, _, names = part.partition(":")
    found: Any = importlib.import_module(module)
    for name in names.split("."):
        found = inspect.getattr_static(found, name)
    found = found.fget if isinstance(found, property) else found
    lines = (line.partition("  # ")[0].strip() for line in inspect.getsource(found).splitlines())
    kept = [line for line in lines if line and not line.startswith("#")]
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()[:12]
