"""What a run shows: statistics, the progress line, the end table."""

from __future__ import annotations

import io
import random
from dataclasses import replace
from pathlib import Path

import pytest

from brimful.outcome import Cause, Failure
from brimful.packing.units import DriveStatus
from brimful.run.display.progress import Progress, Rate, plain_line
from brimful.run.display.stats import Histogram, Recent
from brimful.run.display.summary import Summary, duration
from brimful.run.display.terminal import TerminalDisplay
from support.fake_driver import FakeDriver
from support.runs import fleet, options, run, write_lines


def test_percentiles_of_a_histogram() -> None:
    histogram = Histogram()
    values = [random.Random(place).expovariate(1.0) for place in range(5000)]
    for value in values:
        histogram.add(value)
    for share in (0.5, 0.95):
        exact = sorted(values)[int(share * len(values))]
        assert histogram.percentile(share) == pytest.approx(exact, rel=0.03)
    assert Histogram().summary() == {"p50": None, "p95": None}


def test_recent_holds_the_last_strings_only() -> None:
    recent = Recent(size=2)
    assert [recent.add(word) for word in "abacba"] == [True, True, False, True, False, True]


def test_the_plain_line_leaves_out_what_is_zero() -> None:
    progress = Progress(
        seconds=20, requests=100, total=100, succeeded=40, failed=2, rollouts=80, new_rollouts=80, tokens=1234,
        retries={"timeout": 3}, drive=DriveStatus(queued=9, pack=25),
    )  # fmt: skip
    line = plain_line(progress, fleet(waiting=12, pause_s=3.4, pause_reason="429"), 240.0, 30.0)
    assert line == (
        "42/100 requests, 80 rollouts, 240/min, slots 16/16, window 583/600, waiting 12, queued 9, pack 25, "
        "retries timeout 3, paused 3 s (429), failed 2, tokens 1,234, about 30 s to go"
    )


def test_the_rate_is_of_the_last_half_minute() -> None:
    rate = Rate()
    found: tuple[float, float | None] = (0.0, None)
    for second in range(0, 61, 2):
        done = min(second, 30) * 10
        found = rate.update(Progress(second, 1000, 1000, done, 0, done, done, 0))
    assert found[0] == pytest.approx(0.0, abs=40)
    assert duration(3725) == "1 h 2 min"


def test_a_full_window_decides_the_time_left() -> None:
    rate = Rate()
    rate.update(Progress(10, 2000, 2000, 600, 0, 600, 600, 0))
    now = Progress(50, 2000, 2000, 600, 0, 600, 600, 0)
    full = fleet(slots_used=0, starts_used=600, waiting=40, pause_s=0.2, next_start_s=12.4)
    per_minute, to_go = rate.update(now, full)
    assert (per_minute, to_go) == (0.0, 12.4 + 2 * 60)  # 600 in 12 s, 600 a window later, and the last 200
    line = plain_line(now, full, per_minute, to_go)
    assert "600 rollouts, next start in about 12 s, slots 0/16" in line
    assert "/min" not in line
    assert "paused" not in line
    assert line.endswith("about 2 min 12 s to go")
    packed = replace(now, drive=DriveStatus(pack=100))
    assert rate.update(packed, full)[1] == 12.4
    assert rate.update(now, replace(full, starts_used=0, next_start_s=0.0))[1] == 2 * 60


def test_the_end_table_leaves_out_what_did_not_happen() -> None:
    labels = [label for label, _ in Summary(requests=1, rollouts=1, succeeded=1, output=__file__).rows()]
    assert labels == ["requests", "rollouts", "tokens", "attempts", "took", "output"]
    assert "output" not in dict(Summary(requests=1, output=f"{__file__}.no").rows())


NO_MODEL = Failure(Cause.BAD_REQUEST, "HTTP 404: The model 'nosuch' does not exist", 404, permanent=True)


def test_the_end_table_gives_the_commonest_message_of_each_cause(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    source = write_lines(tmp_path / "in.jsonl", [{"prompt": f"{line}"} for line in range(6)] + ["{", "{"])
    away = Failure(Cause.SERVER_ERROR, "503:\n away", 503)
    driver = FakeDriver(lambda unit, *_: NO_MODEL if unit.line < 4 else away if unit.line == 4 else "ok")
    summary = run(options(source, out=out), driver)
    assert summary is not None
    rows = summary.rows()
    place = [label for label, _ in rows].index("failed")
    assert [value.strip() for _, value in rows[place : place + 3]] == [
        "6: bad_request 3 – HTTP 404: The model 'nosuch' does not exist",
        "bad_input 2 – is not JSON on its own; write it on one line (jq -c . FILE > NEW), or use --input-format json",
        "server_error 1 – 503: away",
    ]
    assert summary.failed_passing == 1
    assert dict(rows)["to do"].startswith("correct the lines (out.jsonl.errors.jsonl names them), then")


async def test_no_colour_is_no_bold_either(monkeypatch: pytest.MonkeyPatch) -> None:
    async def gauges() -> None:
        return None

    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, to rich
    terminal = TerminalDisplay(gauges)
    terminal.console.file = out = io.StringIO()
    progress = Progress(
        seconds=1, requests=2, total=4, succeeded=1, failed=1, rollouts=1, new_rollouts=1, tokens=1, budget=None,
        retries={}, drive=DriveStatus(), stopping=True,
    )  # fmt: skip
    terminal.say("a word")
    await terminal.show(progress)
    terminal.end(Summary(next="brimful run", failed=1))
    assert "requests" in out.getvalue()
    assert not [part for part in out.getvalue().split("\x1b[")[1:] if part.lstrip("0123456789;").startswith("m")]
