"""The small parts of a run: ids, tallies, digests, errors, streams, statistics."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import UsageError
from brimful.outcome import Outcome, Rollout
from brimful.packing.units import Delivered, DriveStatus
from brimful.packing.usage import share_usage
from brimful.run.display.display import Progress, Rate, plain_line
from brimful.run.display.gauges import Gauges
from brimful.run.display.stats import Histogram, Recent
from brimful.run.display.summary import Summary, duration
from brimful.run.input.budget import Budget
from brimful.run.input.digests import LineDigests, name_lines
from brimful.run.input.ids import Ids
from brimful.run.output.done_index import Tally
from brimful.run.output.jsonl import mend
from brimful.run.output.records import rollout_records
from brimful.run.output.sidecar import Ranges
from brimful.runtime.stream import AHEAD, in_thread
from brimful.state.status import _next_start_ms


@given(st.lists(st.none() | st.integers(1, 30).map(str) | st.sampled_from(["a", "b", "007", "-1"]), max_size=40))
def test_ids_find_every_duplicate(stated: list[str | None]) -> None:
    ids = Ids()
    seen: dict[str, int] = {}
    for line, id in enumerate(stated, 1):
        effective = str(line) if id is None else id
        found = ids.add_default(line) if id is None else ids.add(id, line)
        assert found == seen.get(effective)
        seen.setdefault(effective, line)


def test_ids_grow() -> None:
    ids = Ids()
    assert all(ids.add(f"id-{line}", line) is None for line in range(1, 5000))
    assert ids.add("id-77", 9999) == 77


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 1), st.integers(0, 2)), max_size=80))
def test_a_tally_counts_each_rollout_once(pairs: list[tuple[int, int, int]]) -> None:
    tally, seen = Tally(), set()
    for pair in pairs:
        assert tally.add(*pair, of=6) is (pair not in seen)
        seen.add(pair)
    complete = {line for line in range(1, 21) if sum(pair[0] == line for pair in seen) == 6}
    assert {line for line in range(1, 21) if tally.complete(line)} == complete
    assert tally.lines == len(complete)
    assert all(tally.has(*pair) for pair in seen)


@pytest.mark.parametrize(
    ("data", "left"),
    [
        (b"", b""),
        (b'{"a": 1}\n', b'{"a": 1}\n'),
        (b'{"a": 1}\n{"b', b'{"a": 1}\n'),
        (b'{"b', b""),
        (b'{"a": 1}\n{"b": 2}', b'{"a": 1}\n{"b": 2}\n'),
        (b'{"a": 1}\n' + b"\0" * 70_000, b'{"a": 1}\n'),
        (b'{"a": 1}\n12', b'{"a": 1}\n'),
    ],
)
def test_a_torn_line_is_mended(tmp_path: Path, data: bytes, left: bytes) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(data)
    mend(path)
    assert path.read_bytes() == left
    assert mend(path) == 0


def test_digests_are_kept_and_locked(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl.run.lines"
    digests = LineDigests(path)
    assert digests.created
    for line in range(1, 1001):
        digests.note(line, line * 7)
    digests.store()
    with pytest.raises(UsageError, match=r"another run is writing .*out.jsonl:"):
        LineDigests(path)
    digests.close()
    again = LineDigests(path)
    assert not again.created
    assert again.differs(10, 71)
    assert not again.differs(10, 70)
    assert not again.differs(1001, 5)
    again.note(10, 71)
    again.note(1001, 5)
    again.store()
    again.close()
    last = LineDigests(path)
    assert (last.known[9], last.known[1000], len(last.known), last.known[998]) == (71, 5, 1001, 999 * 7)
    last.close()


def test_lines_are_named() -> None:
    assert name_lines([7]) == "line 7"
    assert name_lines([7, 9]) == "lines 7 and 9"
    assert name_lines([1, 2, 3, 4, 5, 6], more=10) == "lines 1, 2, 3, 4, 5 and 11 more"


@given(st.sets(st.integers(1, 60)))
def test_ranges(lines: set[int]) -> None:
    ranges = Ranges()
    for line in sorted(lines):
        ranges.add(line)
    again = Ranges(ranges.ranges)
    assert {line for line in range(62) if line in again} == lines


async def test_a_stream_is_read_in_a_thread_and_not_ahead() -> None:
    read = 0
    more = threading.Event()

    def lines() -> Iterator[int]:
        nonlocal read
        for number in range(3):
            yield number
        more.wait(10)
        for number in range(10 * AHEAD):
            read += 1
            yield number

    stream = in_thread(lines())
    first: list[int] = []
    while len(first) < 3:
        first += await anext(stream)
    assert first == [0, 1, 2]  # there before the input goes on
    more.set()
    await anext(stream)
    for _ in range(100):
        await asyncio.sleep(0)
    assert read <= 2 * AHEAD + 8
    await stream.aclose()  # type: ignore[attr-defined]


async def test_errors_of_a_stream_are_raised() -> None:
    def lines() -> Iterator[int]:
        yield 1
        raise ValueError("at the second")

    seen: list[int] = []
    stream = in_thread(lines())

    async def read() -> None:
        async for batch in stream:
            seen.extend(batch)

    with pytest.raises(ValueError, match="at the second"):
        await read()
    assert seen == [1]


def test_percentiles() -> None:
    histogram = Histogram()
    values = [random.Random(place).expovariate(1.0) for place in range(5000)]
    for value in values:
        histogram.add(value)
    for share in (0.5, 0.95):
        exact = sorted(values)[int(share * len(values))]
        assert histogram.percentile(share) == pytest.approx(exact, rel=0.03)
    assert Histogram().summary() == {"p50": None, "p95": None}


def test_recent_forgets() -> None:
    recent = Recent(size=2)
    assert [recent.add(word) for word in "abacba"] == [True, True, False, True, False, True]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=9), st.integers(0, 1000), st.integers(0, 1000))
def test_shares_of_usage_add_up(weights: list[int], prompt: int, completion: int) -> None:
    shares = share_usage({"prompt_tokens": prompt, "completion_tokens": completion}, weights)
    assert sum(share["prompt_tokens"] for share in shares if share) == prompt
    assert sum(share["completion_tokens"] for share in shares if share) == completion


def test_records_carry_their_part_of_the_usage() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 9, "total_tokens": 19}
    rollouts = [Rollout(prompt, choice, "x" * (choice + 1), "stop") for prompt in range(2) for choice in range(2)]
    made = rollout_records(Delivered(1, "1", rollouts, "m", usage, Outcome("r"), 1), 4)
    assert [record["usage"]["prompt_tokens"] for record in made] == [5, 0, 5, 0]
    assert sum(record["usage"]["total_tokens"] for record in made) == 19


def test_a_budget_holds_what_runs() -> None:
    from brimful.request import Request
    from support.runs import PROFILE

    request = Request.parse({"prompt": "abcd", "max_tokens": 8}, PROFILE)
    budget = Budget(25, used=4)
    assert request.hold == 10
    assert [budget.take(line, request, 1) for line in (1, 2, 3)] == [True, True, False]
    budget.free(1)
    budget.used = 10
    assert budget.holding
    assert not budget.take(3, request, 1)


def test_the_plain_line_tells_what_matters() -> None:
    progress = Progress(
        seconds=20, requests=100, total=100, succeeded=40, failed=2, rollouts=80, new_rollouts=80, tokens=1234,
        retries={"timeout": 3}, drive=DriveStatus(queued=9, pack=25),
    )  # fmt: skip
    gauges = Gauges(16, 16, 583, 600, waiting=12, paused_s=3.4, pause_reason="429")
    line = plain_line(progress, gauges, 240.0, 30.0)
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


def test_a_full_window_is_told_and_reckoned_with() -> None:
    rate = Rate()
    rate.update(Progress(10, 2000, 2000, 600, 0, 600, 600, 0))
    now = Progress(50, 2000, 2000, 600, 0, 600, 600, 0)
    gauges = Gauges(0, 16, 600, 600, waiting=40, paused_s=0.2, window_s=60.0, next_start_s=12.4)
    per_minute, to_go = rate.update(now, gauges)
    assert (per_minute, to_go) == (0.0, 12.4 + 2 * 60)  # 600 in 12 s, 600 a window later, and the last 200
    line = plain_line(now, gauges, per_minute, to_go)
    assert "600 rollouts, next start in about 12 s, slots 0/16" in line
    assert "/min" not in line
    assert "paused" not in line
    assert line.endswith("about 2 min 12 s to go")
    packed = replace(now, drive=DriveStatus(pack=100))
    assert rate.update(packed, gauges)[1] == 12.4
    assert rate.update(now, replace(gauges, starts_used=0, next_start_s=0.0))[1] == 2 * 60


def test_the_next_start_is_when_the_full_window_has_room() -> None:
    assert _next_start_ms([-5.0, 100.0, 200.0, 300.0], 3) == 100.0
    assert _next_start_ms([100.0, 200.0, 300.0], 2) == 200.0  # the limit was lowered meanwhile
    assert _next_start_ms([100.0], 2) == _next_start_ms([], 0) == 0.0


def test_the_end_table_leaves_out_what_did_not_happen() -> None:
    labels = [label for label, _ in Summary(requests=1, rollouts=1, succeeded=1, output=__file__).rows()]
    assert labels == ["requests", "rollouts", "tokens", "attempts", "took", "output"]
    assert "output" not in dict(Summary(requests=1, output=f"{__file__}.no").rows())
