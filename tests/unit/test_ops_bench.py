"""The benches: arithmetic, report, and one client process of brimful on a real server."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from brimful_worker.local.server.valkey import Valkey
from support.gateways import running_gateway

BENCH = Path(__file__).parents[2] / "ops" / "bench"
_MODULES = ("arithmetic", "contenders", "door", "doors", "processes", "report", "rtt", "scenarios")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The bench's modules; it is a folder to run, no package."""
    monkeypatch.syspath_prepend(str(BENCH))
    yield {name: __import__(name) for name in _MODULES}
    for name in _MODULES:
        sys.modules.pop(name, None)


def test_peers_are_pinned() -> None:
    lines = [line for file in BENCH.glob("*requirements.txt") for line in file.read_text("utf-8").splitlines()]
    for line in lines:
        assert line.startswith("#") or re.match(r"^[a-z-]+(\[[a-z]+\])?==[\d.]+(;|$)", line), line


def test_peak_counts_an_end_before_a_beginning_of_the_same_instant(bench: dict[str, ModuleType]) -> None:
    peak = bench["arithmetic"].peak
    assert peak([(0, 1, 2), (0, 2, 3)]) == 1
    assert peak([(0, 1, 2.5), (0, 2, 3), (0, 2.2, 2.3)]) == 3
    assert peak([]) == 0


def test_most_in_window_is_half_open(bench: dict[str, ModuleType]) -> None:
    most = bench["arithmetic"].most_in_window
    assert most([0.0, 0.5, 1.0], 1.0) == 2
    assert most([0.0, 0.5, 0.999], 1.0) == 3
    assert most([], 1.0) == 0


def test_the_report_shows_values_beyond_their_bound(bench: dict[str, ModuleType]) -> None:
    report = bench["report"]
    bound = {"recovery_bound_s": 45.0}
    figures = {
        "brimful": {"commands_96": 1.0, "commands_wide": 1.0, "recovery_s": 8.0, **bound, "window_most": 60},
        "peer <1>": {"commands_96": 9.0, "commands_wide": 12.0, "recovery_s": None, **bound, "wait_wide": None},
    }
    sizes = dataclasses.asdict(bench["processes"].FULL)
    text = report.document({"about": "x", "sizes": sizes, "figures": figures, "growth": [], "notes": ["late"]})
    assert "| **brimful** |" in text
    assert "> 45" in text
    assert "not served" in text
    assert text.endswith("- late\n")
    panels = [("commands_wide", "Commands", None, "less"), ("recovery_s", "Recovery", None, "less")]
    drawing = report.chart(figures, [*panels, ("window_most", "Window", 60.0, "60")])
    assert ElementTree.fromstring(drawing).tag.endswith("svg")
    assert "peer &lt;1&gt;" in drawing


def test_a_client_of_brimful_keeps_within_the_limit(bench: dict[str, ModuleType], valkey: Valkey) -> None:
    processes, contenders = bench["processes"], bench["contenders"]
    entry = contenders.BY_NAME["brimful"]
    place = processes.Bench(valkey.url, sys.executable, sys.executable, processes.QUICK, [])
    place.fresh(entry)
    spec = {"kind": "rounds", "slots": 2, "coroutines": 6, "rounds": 2, "hold_s": 0.02}
    results = processes.together(place.clients(entry, spec, spec))
    events = [event for result in results for event in result["events"]]
    assert len(events) == 24
    assert bench["arithmetic"].peak(events) <= 2
    assert all(result["commands"] > 0 for result in results)


def test_the_doors_are_shown_beside_each_other(bench: dict[str, ModuleType]) -> None:
    door = bench["door"]
    figures = {
        name: door.Figures(seconds, 500, refused, most, 16, 1.5, 0.5)
        for name, seconds, refused, most in (("ours, 1 process", 41.6, 0, 100), ("its, 1 process", 47.6, 350, 214))
    }
    figures["ours, 1 process"].added_p50_ms = 2.25
    page = door.document(figures, door.FULL, "NOTE", 0.5)
    assert "| seconds for 500 chats | 41.6 | 47.6 |" in page
    assert "| 429s at the gateway | 0 | 350 |" in page
    assert "| added to a request, median | 2.2 ms |  |" in page
    assert "the limits allow 41.4 s" in page
    assert page.endswith("\nNOTE\n")


async def test_a_client_of_the_doors_counts_what_is_answered(bench: dict[str, ModuleType]) -> None:
    async with running_gateway(starts=None) as gateway:
        doors = bench["doors"].Doors([gateway.url], [], None, "any")
        assert await bench["door"].flood(doors, 40) == 40
        assert gateway.request_log.statuses[200] == 40
        median, most = await bench["door"].added(gateway.url, doors, 20)
        assert median <= most


@pytest.mark.parametrize("quick", [True, False])
def test_the_distances_are_measured_for_fewer_windows_when_it_must_be_quick(
    bench: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, quick: bool
) -> None:
    rtt = bench["rtt"]

    def cell(_server: str, _url: str, rtt_ms: int, window_s: float, _windows: int = 0) -> dict[str, object]:
        return {"rtt_ms": rtt_ms, "window_s": window_s if _windows else None, "share": 0.5, "failure": ""}

    monkeypatch.setattr(rtt, "starts_share", cell)
    monkeypatch.setattr(rtt, "slots_share", cell)
    page = rtt.main(quick)["markdown"]
    limits = [line.split("|")[1].strip() for line in page.splitlines() if "→" in line and line.startswith("|")]
    windows = ["10 starts in 1 s", "100 starts in 10 s", "600 starts in 60 s"]
    assert limits == [*windows[: 2 if quick else 3], "16 slots"]


def test_the_bench_is_a_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, BENCH, "--only", "nobody", "--out", tmp_path], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "'brimful'" in done.stderr
    done = subprocess.run([sys.executable, BENCH, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    for part in ("limiters", "packing", "thousands", "million", "groups", "door"):
        assert part in done.stdout
