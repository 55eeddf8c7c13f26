"""How many prompts a request is to carry."""

from __future__ import annotations

import math
from typing import Any

import pytest

from brimful.packing.latency import RequestTime
from brimful.packing.pack_size import Chunk, PackSizer, Planned, fill_slots
from brimful.packing.packing import PackKey
from brimful.packing.slot_model import Limits
from support.packed import packed


def key(**fields: Any) -> PackKey:
    return packed("x", 1, **fields).pack_key


def sizer(slots: int = 16, starts: int | None = None, window_s: float = 60.0, timeout_s: float = 120.0) -> PackSizer:
    return PackSizer(Limits(slots, starts, window_s), timeout_s)


def learn(there: PackSizer, fixed_s: float, prompt_s: float, *sizes: int, **fields: Any) -> None:
    for size in sizes * 6:
        there.learn(key(**fields), size, 0.0, fixed_s + prompt_s * size)


def test_before_anything_is_known_requests_are_small() -> None:
    assert sizer().most_prompts(key()) == 15, "40 tokens a second, 16 slots, 48 s, 8 tokens a prompt"
    assert sizer(1).most_prompts(key()) == 128
    assert sizer(1).most_prompts(key(max_tokens=64)) == 30, "a share of the timeout"
    assert sizer(1, timeout_s=1e4).most_prompts(key(max_tokens=64)) == 64, "4096 tokens"
    assert sizer(1, timeout_s=1e4).most_prompts(key(max_tokens=64, n=2)) == 32
    assert sizer().most_prompts(key(max_tokens=4000)) == 1
    assert sizer(1).most_prompts(key(mode="chat")) == 1
    assert sizer(1).best(key()) == 128


def test_a_refused_budget_bounds_all_requests() -> None:
    there = sizer(1)
    there.max_prompts = 7
    assert there.most_prompts(key()) == 7


def test_what_was_learnt_is_predicted() -> None:
    there = sizer()
    assert not there.seen(key())
    assert there.seconds(key(), 3) is None
    assert there.predicted_s(key(), 3) == pytest.approx(0.24)
    learn(there, 0.5, 0.1, 1)
    assert there.seen(key())
    assert not there.known(key())
    assert there.seconds(key(), 2) == pytest.approx(1.2)
    learn(there, 0.5, 0.1, 2, 4, 8)
    assert there.known(key())
    assert there.seconds(key(), 20) == pytest.approx(2.5, rel=0.02)
    assert not there.seen(key(model="other"))


@pytest.mark.parametrize(("prompts", "exceeds"), [(1, False), (5, False), (8, False), (12, True)])
def test_which_requests_run_into_their_timeout(prompts: int, exceeds: bool) -> None:
    there = sizer(timeout_s=1.0)
    assert not there.exceeds_timeout(key(), 99), "nothing is known"
    learn(there, 0.0, 0.1, 1, 2, 4)
    assert there.exceeds_timeout(key(), prompts) is exceeds
    slow = sizer(timeout_s=1.0)
    learn(slow, 0.0, 2.0, 1, 2, 4)
    assert not slow.exceeds_timeout(key(), 1), "a single prompt cannot be divided"
    assert slow.exceeds_timeout(key(), 2)


def test_requests_take_two_fifths_of_their_timeout_at_most() -> None:
    there = sizer(1, timeout_s=10.0)
    learn(there, 0.0, 0.1, 1, 2, 4, 8)
    assert there.most_prompts(key()) == pytest.approx(40, abs=1)
    there.timeout_s = 20.0
    assert there.most_prompts(key()) == pytest.approx(80, abs=1)


def test_no_request_is_far_larger_than_what_was_seen() -> None:
    there = sizer(1)
    learn(there, 0.5, 1e-4, 1, 2, 4)
    assert there.most_prompts(key()) == 64
    there.latency(key().model).ceiling = 8 * 20
    assert there.most_prompts(key()) == 20


def test_slots_share_what_the_provider_reaches() -> None:
    for slots, most in ((1, 64), (1000, 8)):  # 336 tokens in a quarter of a second, in 48 s
        there = sizer(slots)
        learn(there, 0.1, 1e-4, 1, 2, 4)
        assert there.most_prompts(key()) == most


@pytest.mark.parametrize(
    ("starts", "window_s", "between_s"), [(None, 60.0, 0.005), (600, 60.0, 0.1), (60_000, 60.0, 0.005), (1, 3.0, 3.0)]
)
def test_seconds_between_starts(starts: int | None, window_s: float, between_s: float) -> None:
    assert sizer(16, starts, window_s).between_starts_s == between_s


def test_the_fewest_prompts_that_reach_nearly_the_best_rate() -> None:
    there = sizer(4, 4, 4.0)
    learn(there, 0.5, 0.01, 1, 4, 16, 64)
    most = there.most_prompts(key())
    best = there.best(key())
    rate = [prompts / max((0.5 + 0.01 * prompts) / 4, 1.0) for prompts in range(1, most + 1)]
    enough = next(place for place, each in enumerate(rate, 1) if each >= 0.98 * rate[-1])
    assert best == pytest.approx(enough, abs=2)
    single = sizer(16)
    learn(single, 0.0, 0.1, 1, 2, 4)
    assert single.best(key()) <= 2, "packing does not pay"


def test_models_are_forgotten_beyond_64() -> None:
    there = sizer()
    for number in range(64):
        learn(there, 0.0, 0.1, 1, model=f"m{number}")
    assert there.seen(key(model="m0"))
    learn(there, 0.0, 0.1, 1, model="another")
    assert not there.seen(key(model="m0"))
    assert there.seen(key(model="m2"))


# -- the end of a run ---------------------------------------------------------------------------------------------


def test_all_that_is_left_ends_together() -> None:
    assert fill_slots([Chunk(8, 9, RequestTime(0.0, 1.0))], [0.0, 0.0], None, 0.1) == [Planned(0.0, 0, 4)] * 2
    later = fill_slots([Chunk(8, 9, RequestTime(0.0, 1.0))], [0.0, 2.0], None, 0.1)
    assert later == [Planned(0.0, 0, 5), Planned(2.0, 0, 3)]
    bounded = fill_slots([Chunk(8, 3, RequestTime(0.0, 1.0))], [0.0, 0.0], None, 0.1)
    assert [planned.prompts for planned in bounded] == [3, 3, 1, 1]
    assert [planned.begins_s for planned in bounded] == [0.0, 0.0, 3.0, 3.0]


def test_longer_prompts_are_planned_first() -> None:
    planned = fill_slots(
        [Chunk(2, 9, RequestTime(0.0, 1.0)), Chunk(1, 9, RequestTime(0.0, 2.0))], [0.0, 0.0], None, 0.1
    )
    assert sorted(planned) == [Planned(0.0, 0, 2), Planned(0.0, 1, 1)]


def test_scarce_starts_make_larger_requests() -> None:
    chunk = [Chunk(8, 9, RequestTime(0.0, 1.0))]
    assert len(fill_slots(chunk, [0.0] * 8, None, 1.0)) == 8
    few = fill_slots(chunk, [0.0] * 8, 0, 1.0)
    ends = max(planned.begins_s + planned.prompts for planned in few)
    assert len(few) <= math.ceil(ends)
    assert sum(planned.prompts for planned in few) == 8
    assert len(fill_slots(chunk, [0.0] * 8, 8, 1.0)) == 8, "starts that are left in the window"


def test_slow_prompts_and_a_single_slot() -> None:
    assert fill_slots([Chunk(8, 9, RequestTime(0.0, 10.0))], [0.0, 0.0], None, 0.1) == [Planned(0.0, 0, 4)] * 2
    assert fill_slots([Chunk(3, 9, RequestTime(0.0, 1.0))], [5.0], None, 0.1) == [Planned(5.0, 0, 3)]
