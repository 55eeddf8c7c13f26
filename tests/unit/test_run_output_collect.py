"""Deliveries are written to the output and its error file, and counted: with a run's real files, and no driver."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brimful.outcome import Cause, Failure, Outcome, Rollout
from brimful.packing.units import Delivered, Failed, Unit
from brimful.profile.prices import Price
from brimful.run.output.collect import Collector
from brimful.run.prepare import prepare
from support.runs import PROFILE, identities, options, prompts, records

REFUSED = Failure(Cause.BAD_REQUEST, "no", 400, permanent=True)
LATE = Failure(Cause.TIMEOUT, "late", 504)
PRICED = PROFILE.model_copy(update={"prices": {"llama-8b": Price(input=1.0, output=10.0)}})


class Run:
    """Three lines of two rollouts each, all of which are in flight."""

    def __init__(self, folder: Path, *, out: str = "out.jsonl", profile: Any = PROFILE, **more: Any) -> None:
        self.out = folder / out
        defaults = {"max_tokens": 8, "n": 2}
        asked = options(prompts(folder, 3), out=out if out == "-" else self.out, read={"defaults": defaults}, **more)
        self.prepared = prepare(asked, profile)
        self.said: list[str] = []
        self.ended: list[tuple[str, str]] = []
        self.collector = Collector(
            self.prepared.sink,
            self.prepared.done,
            self.prepared.counts,
            self.prepared.errors,
            self.said.append,
            lambda cause, message: self.ended.append((cause, message)),
        )
        self.feed = self.prepared.feed(self.collector.take_bad)

    async def read(self) -> list[Unit]:
        return [unit async for unit in self.feed.units()]

    def take(self, *batch: Delivered | Failed, **more: Any) -> None:
        self.collector.take(batch, self.feed, **more)

    @property
    def written(self) -> list[tuple[str, int, int]]:
        return identities(self.out)

    @property
    def failures(self) -> list[str]:
        errors = self.out.with_name("out.jsonl.errors.jsonl")
        return [record["id"] for record in records(errors)] if errors.exists() else []


@pytest.fixture
async def a_run(tmp_path: Path) -> AsyncIterator[Run]:
    made = Run(tmp_path)
    await made.read()
    yield made
    made.prepared.close()


@pytest.fixture
def budgeted(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path, budget_tokens=10_000)
    yield made
    made.prepared.close()


def delivered(
    line: int, *choices: int, request: str = "", packed: int = 1, usage: Any = None, **more: Any
) -> Delivered:
    rollouts = [Rollout(0, choice, f"t{choice}", "stop") for choice in choices or (0, 1)]
    outcome = Outcome(request or f"q{line}-{choices}", completion={}, attempts=1, **more)
    return Delivered(line, f"p{line - 1}", rollouts, "llama-8b", usage, outcome, packed)


def failed(line: int, failure: Failure, request: str = "") -> Failed:
    return Failed(line, f"p{line - 1}", None, (), failure, Outcome(request or f"f{line}", failure=failure, attempts=1))


async def test_each_request_is_counted_once(a_run: Run) -> None:
    retries = {str(Cause.RATE_LIMITED): 2, str(Cause.TIMEOUT): 1}
    first = delivered(1, request="a", packed=2, waited_s=1.0, provider_s=2.0, retrying_s=4.0, retries=retries)
    second = replace(delivered(2, 0, packed=2), outcome=first.outcome)
    a_run.take(first, second)
    a_run.take(delivered(2, 1, retries={str(Cause.TIMEOUT): 1}, provider_s=0.5), failed(3, LATE))
    a_run.take(delivered(3, request="before", packed=9), earlier=True)
    made = a_run.collector
    assert (made.attempts, made.packed, made.rate_limited, made.retries) == (3, 1, 2, {"rate_limited": 2, "timeout": 2})
    assert made.provider_sum_s == 2.5
    for histogram, longest in ((made.waiting_s, 1.0), (made.provider_s, 2.0), (made.retrying_s, 4.0)):
        assert (histogram.count, histogram.percentile(1.0)) == (3, pytest.approx(longest, rel=0.02))


async def test_rollouts_that_are_there_already_are_dropped(a_run: Run) -> None:
    a_run.take(delivered(1, 0), delivered(1, 0, 1))
    a_run.take(delivered(1, 1), delivered(2, 1))
    assert a_run.written == [("p0", 0, 0), ("p0", 0, 1), ("p1", 0, 1)]
    assert a_run.prepared.done.complete(1)
    assert not a_run.prepared.done.complete(2)
    assert set(a_run.feed.lines) == {2, 3}, "of the first line nothing more comes"


async def test_rollouts_of_a_line_that_was_not_read_yet_do_not_complete_it(tmp_path: Path) -> None:
    unread = Run(tmp_path)
    unread.take(delivered(1))
    assert unread.prepared.done.count(1, next(iter(await unread.read())).request) == 2
    unread.prepared.close()


async def test_only_accepted_rollouts_are_written(a_run: Run) -> None:
    a_run.take(delivered(1, 0, 1), failed(2, LATE), accepted={(1, 0, 1): {"hook": "good"}})
    assert a_run.written == [("p0", 0, 1)]
    assert records(a_run.out)[0]["hook"] == "good"
    assert a_run.failures == [], "whoever accepts them calls fail()"
    a_run.collector.fail(failed(2, LATE), a_run.feed)
    assert a_run.failures == ["p1"]


async def test_a_lasting_failure_is_recorded_once_the_provider_has_sampled_something(a_run: Run) -> None:
    made = a_run.collector
    a_run.take(failed(1, REFUSED), failed(2, LATE))
    assert (made.undecided, made.decided, a_run.failures) == (1, False, ["p1"])
    a_run.take(delivered(3))
    assert (made.undecided, made.decided, made.failed) == (0, True, 2)
    assert a_run.failures == ["p1", "p0"]
    a_run.take(failed(1, REFUSED))
    assert a_run.failures == ["p1", "p0", "p0"]


async def test_failures_that_the_run_s_end_leaves_undecided_are_asked_for_again(a_run: Run) -> None:
    a_run.take(failed(1, REFUSED))
    a_run.collector.drop_undecided()
    a_run.collector.record_undecided()
    assert (a_run.failures, a_run.collector.undecided) == ([], 0)


@pytest.mark.parametrize("cause", [Cause.KEY_REFUSED, Cause.BUDGET])
async def test_a_refusal_of_everything_is_no_line_s_failure(a_run: Run, cause: Cause) -> None:
    a_run.take(failed(1, Failure(cause, "no more", permanent=True)))
    assert a_run.ended == [(cause.value, "no more")]
    assert (a_run.failures, a_run.collector.undecided) == ([], 0)


async def test_requests_that_had_failed_in_an_earlier_try_and_have_ended_again(tmp_path: Path) -> None:
    first = Run(tmp_path)
    await first.read()
    first.take(failed(1, LATE), failed(2, LATE), delivered(3))
    assert (first.collector.ended_again, first.collector.failed) == (0, 2)
    first.prepared.close()
    again = Run(tmp_path, retry_errors=True)
    await again.read()
    found = []
    for batch in ([], [failed(1, LATE)], [failed(1, LATE, "again")], [delivered(2, 0)], [delivered(2, 1)]):
        again.take(*batch)
        found.append((again.collector.ended_again, again.collector.failed))
    assert found == [(0, 2), (1, 2), (1, 2), (1, 2), (2, 1)]
    again.prepared.close()


async def test_without_files_failures_are_messages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = Run(tmp_path, out="-")
    await made.read()
    made.take(failed(1, LATE), failed(2, LATE))
    assert made.said == [f"line {line} (id p{line - 1}): timeout: late" for line in (1, 2)]
    assert made.collector.failed == 2
    made.prepared.close()


@pytest.mark.parametrize(
    ("batch", "learnt"),
    [
        ([delivered(1, usage={"prompt_tokens": 7})], [([1], 7)]),
        ([delivered(1, 0, usage={"prompt_tokens": 7})], []),
        ([delivered(1, usage=None)], []),
        ([delivered(1, usage={"prompt_tokens": 7, "estimated": True})], []),
        ([delivered(line, request="both", usage={"prompt_tokens": line}) for line in (1, 2)], [([1, 2], 3)]),
        ([delivered(1, usage={"prompt_tokens": 7}), failed(2, LATE)], [([1], 7)]),
    ],
)
async def test_a_budget_learns_from_whole_requests_that_the_provider_has_counted(
    budgeted: Run, monkeypatch: pytest.MonkeyPatch, batch: list[Delivered | Failed], learnt: list[tuple[list[int], int]]
) -> None:
    found = []
    monkeypatch.setattr(budgeted.feed.budget, "learn", lambda lines, tokens: found.append((list(lines), tokens)))
    await budgeted.read()
    budgeted.take(*batch)
    assert found == learnt


async def test_without_a_budget_nothing_is_learnt(a_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(a_run.feed.budget, "learn", None)
    a_run.take(delivered(1, usage={"prompt_tokens": 7}))
    assert len(a_run.written) == 2


async def test_where_models_have_prices_the_model_that_was_asked_for_is_known(tmp_path: Path, a_run: Run) -> None:
    item = delivered(1)
    assert a_run.collector.named(item, a_run.feed) is item
    priced = Run(tmp_path, out="priced.jsonl", profile=PRICED)
    named = priced.collector.named(item, priced.feed)
    assert named == replace(item, asked_model=str(PRICED.model))
    known = replace(item, asked_model="known")
    assert priced.collector.named(known, priced.feed) is known
    priced.prepared.close()
