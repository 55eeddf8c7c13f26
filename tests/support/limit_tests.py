"""Which tests assert the limits, so that no excess is ever tried again: they get the marker ``limits``.

It is read from their source, so that a new one cannot be forgotten: a test that names what a gateway counts at most, or
calls a function of its module that does.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

_COUNTED = ("peak_active", "peak_present", "most_active", "most_in", "most_starts_in_window", "window.peak")
_WHOLE = ("test_admission_losses_model", "test_admission_model", "test_admission_storm", "test_limits_storm")
"""Files whose tests leave that to models and storms in tests/support."""
_STORMS = "storm.py"
_NAMES = (ast.Name, ast.arg)


@functools.cache
def limit_tests(file: Path) -> frozenset[str]:
    """Names of the file's functions and classes that assert the limits."""
    source = file.read_text("utf-8")
    whole = file.stem in _WHOLE or file.name.endswith(_STORMS)
    if not whole and not any(word in source for word in _COUNTED):
        return frozenset()
    found: set[str] = set()
    lines = source.splitlines()
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    parts = [node for node in ast.parse(source).body if isinstance(node, kinds)]
    callers: list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef] = []
    for part in parts:
        text = "\n".join(lines[part.lineno - 1 : part.end_lineno])
        if whole or any(word in text for word in _COUNTED):
            found.add(part.name)
        else:
            callers.append(part)
    names = {part.name: _names(part) for part in callers}
    for _ in range(2):  # those that call them, in either order
        found |= {name for name, named in names.items() if named & found}
    return frozenset(found)


def _names(part: ast.AST) -> set[str]:
    """What it refers to, its fixtures too."""
    return {node.id if isinstance(node, ast.Name) else node.arg for node in ast.walk(part) if isinstance(node, _NAMES)}


def asserts_limits(file: Path, test: Callable[..., Any], cls: type | None) -> bool:
    """Whether this test of the file does, as a method of a class or not."""
    return (cls or test).__name__ in limit_tests(file)
