"""How a Job waits between its polls."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from brimful.outcome import Cause
from brimful_worker.provider.answers.answer import Classification, Kind
from brimful_worker.provider.jobs import Hooks
from brimful_worker.sampling.job_hooks import job_hooks
from support.sampling import Bench, bench


class Seen:
    """What the hooks did, in order. No second passes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.all: list[tuple[str, object]] = []

        async def sleep(seconds: float) -> None:
            self.all.append(("slept", round(seconds, 6)))

        monkeypatch.setattr(asyncio, "sleep", sleep)

    def hooks(self, it: Bench) -> Hooks:
        it.sampler.uniform = lambda: 0.5

        async def pause_fleet(answer: Classification) -> None:
            self.all.append(("paused", answer.retry_after_s))

        return job_hooks(
            it.sampler, note=lambda answer: self.all.append(("noted", answer.cause)), pause_fleet=pause_fleet
        )


async def test_polls_grow_rarer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench(monkeypatch, "http://127.0.0.1:1", job_poll_s=1.0) as it:
        with monkeypatch.context() as patch:
            seen = Seen(patch)
            hooks = seen.hooks(it)
            for polls in range(5):
                await hooks.pause(polls)
    assert seen.all == [("slept", seconds) for seconds in (1.0, 2.0, 4.0, 8.0, 10.0)]


@pytest.mark.parametrize(("retry_after_s", "waited"), [(None, None), (0.0, None), (3.0, 3.0), (500.0, 60.0)])
async def test_a_throttled_poll_waits_as_the_fourth_does(
    monkeypatch: pytest.MonkeyPatch, retry_after_s: float | None, waited: float | None
) -> None:
    answer = Classification(Kind.THROTTLED, cause=Cause.RATE_LIMITED, retry_after_s=retry_after_s)
    async with bench(monkeypatch, "http://127.0.0.1:1", job_poll_s=1.0, retry_after_cap_s=60.0) as it:
        with monkeypatch.context() as patch:
            seen = Seen(patch)
            await seen.hooks(it).throttled(answer)
    named = [] if waited is None else [("paused", retry_after_s), ("slept", waited)]
    assert seen.all == [("noted", Cause.RATE_LIMITED), *named, ("slept", 8.0)]


@pytest.mark.parametrize("counts", [True, False])
async def test_polls_take_starts_where_the_provider_counts_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, counts: bool
) -> None:
    mine = tmp_path / "profiles.toml"
    mine.write_text(f"[acs]\njob_polls_count = {str(counts).lower()}\n")
    async with bench(monkeypatch, "http://127.0.0.1:1", profiles=mine) as it:
        hooks = Seen(monkeypatch).hooks(it)
        assert (hooks.start is not None) is counts
        assert not hooks.giving_back()
        it.sampler.stopping = lambda: True
        assert Seen(monkeypatch).hooks(it).giving_back()
