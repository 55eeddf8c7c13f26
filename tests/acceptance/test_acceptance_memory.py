"""Many lines in flat memory, of the submitter and of Redis. `make bench` does it with a million."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[2] / "ops" / "bench"
LINES = 8_000


@pytest.fixture
def million(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    module = __import__("million")
    for name in ("million", "runs"):
        sys.modules.pop(name, None)
    return module


@pytest.mark.compat
@pytest.mark.timeout(400)
def test_many_lines_take_no_more_memory_than_some(tmp_path: Path, million: ModuleType) -> None:
    found = million.measure(tmp_path, LINES, look_s=0.4)
    assert found["records"] == found["sampled"] == LINES
    assert found["most"] < 150
    assert found["end"] < found["quarter"] + 15
    assert found["redis_most"] < 20
