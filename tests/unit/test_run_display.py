"""What a run shows: statistics, the progress line, the end table."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest

from brimful.outcome import Cause, Failure
from brimful.packing.units import DriveStatus
from brimful.run.display.progress import Progress, plain_line
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


def test_the_plain_line_says_prompts_rollouts_and_rates_and_leaves_out_zeros() -> None:
    progress = Progress(
        seconds=20, requests=100, total=1291, succeeded=40, failed=2, rollouts=80, new_rollouts=80, tokens=1234,
        retries={"timeout": 3, "server_error": 1, "rate_limited": 5}, rate_limited=5,
        drive=DriveStatus(queued=9, pack=25), budget=5000,
    )  # fmt: skip
    line = plain_line(progress, fleet(waiting=12, pause_s=3.4, pause_reason="429"), 1170.4, 30.2)
    assert line == (
        "42/1,291 prompts, 80 rollouts, 1,170/min, slots 16/16, window 583/600, waiting 12, queued 9, pack 25, "
        "rate-limited 5, retries server_error 1, timeout 3, paused 3 s (429), failed 2, tokens 1,234 of 5,000, "
        "about 30 s to go"
    )
    line = plain_line(Progress(1, 1, 1, 1, 0, 1, 1, 7), None, 0.0, None)
    assert line == "1/1 prompt, 1 rollout, 0/min, rate-limited 0, tokens 7"


def test_while_the_window_is_full_the_next_start_is_told_in_place_of_the_rate() -> None:
    now = Progress(50, 2000, 2000, 600, 0, 600, 600, 0)
    line = plain_line(now, fleet(slots_used=0, starts_used=600, pause_s=0.2, next_start_s=12.4), 0.0, 132.4)
    assert "600 rollouts, next start in about 12 s, slots 0/16" in line
    assert "/min" not in line
    assert "paused" not in line
    assert line.endswith("about 2 min 12 s to go")
    assert duration(3725) == "1 h 2 min"


def test_the_end_table_leaves_out_what_did_not_happen() -> None:
    labels = [label for label, _ in Summary(requests=1, rollouts=1, succeeded=1, output=__file__).rows()]
    assert labels == ["prompts", "rollouts", "tokens", "API calls", "took", "output"]
    assert "output" not in dict(Summary(requests=1, output=f"{__file__}.no").rows())


def test_the_end_table_counts_one_of_a_thing_as_one() -> None:
    assert ("limits", "the provider allows 8") in Summary(requests=1, learnt=["the provider allows 8"]).rows()
    rows = dict(Summary(requests=1, attempts=1, packed_requests=1, parted=1, estimated=1, rate_limited=0).rows())
    assert rows["API calls"] == (
        "1, rate-limited 0, 1 with several prompts, 1 of those failed and was split into smaller ones"
    )
    assert rows["estimated"].startswith("the tokens of 1 rollout: ")
    assert rows["achieved"].startswith("0 rollouts/min")


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
    assert "prompts" in out.getvalue()
    assert not [part for part in out.getvalue().split("\x1b[")[1:] if part.lstrip("0123456789;").startswith("m")]
