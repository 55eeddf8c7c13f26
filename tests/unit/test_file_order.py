"""The order of test files: each of unit between two others, and the tests of a file together."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

from support.file_order import HasPath, interleaved


def _order(*files: str) -> list[str]:
    tests = [cast(HasPath, SimpleNamespace(path=Path("tests", file))) for file in files]
    return [test.path.stem for test in interleaved(tests)]


def test_waiting_files_have_computing_ones_between_them() -> None:
    files = [f"integration/{name}" for name in "aabbcd"] + [f"unit/{name}" for name in "xyzzw"]
    assert "".join(_order(*files)) == "aabbxcdyzzw"


def test_one_kind_keeps_its_order() -> None:
    assert _order("unit/x", "unit/x", "unit/a") == ["x", "x", "a"]
    assert _order("acceptance/b", "integration/a") == ["b", "a"]
    assert _order() == []
