"""The bench: its arithmetic, its report, and one real client process of ours on a real server."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from brimful_worker.local.valkey import Valkey

BENCH = Path(__file__).parents[2] / "ops" / "bench"
_MODULES = ("contenders", "report", "scenarios")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The bench's modules; it is a folder to run, no package."""
    monkeypatch.syspath_prepend(str(BENCH))
    yield {name: __import__(name) for name in _MODULES}
    for name in _MODULES:
        sys.modules.pop(name, None)


def test_peers_are_pinned() -> None:
    for line in (BENCH / "requirements.txt").read_text("utf-8").splitlines():
        assert line.startswith("#") or re.match(r"^[a-z-]+(\[[a-z]+\])?==[\d.]+(;|$)", line), line


def test_peak_counts_an_end_before_a_beginning_of_the_same_instant(bench: dict[str, ModuleType]) -> None:
    peak = bench["scenarios"].peak
    assert peak([(0, 1, 2), (0, 2, 3)]) == 1
    assert peak([(0, 1, 2.5), (0, 2, 3), (0, 2.2, 2.3)]) == 3
    assert peak([]) == 0


def test_most_in_window_is_half_open(bench: dict[str, ModuleType]) -> None:
    most = bench["scenarios"].most_in_window
    assert most([0.0, 0.5, 1.0], 1.0) == 2
    assert most([0.0, 0.5, 0.999], 1.0) == 3
    assert most([], 1.0) == 0


def test_the_report_says_what_was_not_reached(bench: dict[str, ModuleType]) -> None:
    report = bench["report"]
    figures = {
        "brimful": {"commands_wide": 1.0, "recovery_s": 8.0, "recovery_bound_s": 45.0, "window_most": 60},
        "peer <1>": {"commands_wide": 12.0, "recovery_s": None, "recovery_bound_s": 45.0, "wait_wide": None},
    }
    text = report.table(figures, report.columns(400, 60, 2.0))
    assert "**brimful**" in text
    assert "> 45" in text
    assert "not served" in text
    panels = [("commands_wide", "Commands", None, "less"), ("recovery_s", "Recovery", None, "less")]
    drawing = report.chart(figures, [*panels, ("window_most", "Window", 60.0, "60")])
    assert ElementTree.fromstring(drawing).tag.endswith("svg")
    assert "peer &lt;1&gt;" in drawing


def test_a_client_of_ours_stays_within_the_limit(bench: dict[str, ModuleType], valkey: Valkey) -> None:
    scenarios, contenders = bench["scenarios"], bench["contenders"]
    entry = contenders.BY_NAME["brimful"]
    place = scenarios.Bench(valkey.url, sys.executable, sys.executable, scenarios.QUICK, [])
    place.fresh(entry)
    spec = {"kind": "rounds", "slots": 2, "coroutines": 6, "rounds": 2, "hold_s": 0.02}
    results = scenarios.together(place.clients(entry, spec, spec))
    events = [event for result in results for event in result["events"]]
    assert len(events) == 24
    assert scenarios.peak(events) <= 2
    assert all(result["commands"] > 0 for result in results)
