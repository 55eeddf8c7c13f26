"""``--pack auto`` in virtual time: about as fast as the best fixed size, and never slower than ``off``."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.packing.latency import Latency, RequestTime
from brimful.packing.pack_size import Chunk, PackSizer, fill_slots
from brimful.packing.packing import slices_of
from brimful.packing.slot_model import Limits, SlotModel
from brimful.packing.units import PackOption, Unit
from brimful.request import Request
from support.packsim import ACS, Simulated, lines, simulate, units

Seconds = Callable[[int, int], float]

_PROBING_S = 1.1
_SIZES = (16, 32, 64, 128, 200, 375, 500, 625, 800, 1000)


def mild(max_tokens: int, choices: int) -> float:
    """Packing pays: each further choice adds 2 %."""
    return 0.2 + 0.01 * max_tokens * (1 + 0.02 * (choices - 1))


def proportional(max_tokens: int, choices: int) -> float:
    """Packing does not pay."""
    return 0.01 * max_tokens * choices


def fast_proportional(max_tokens: int, choices: int) -> float:
    return 0.002 * max_tokens * choices


plain_lines = cache(lines)


@cache
def plain(count: int, pack: PackOption, seconds: Seconds, total_known: bool = True) -> Simulated:
    return simulate(plain_lines(count), pack, seconds, total_known=total_known)


@pytest.mark.parametrize(
    ("count", "share"),
    [(300, 0.9), (2_000, 0.9), (6_000, 0.8), (20_000, 0.9), pytest.param(40_000, 0.9, marks=pytest.mark.compat)],
)
def test_auto_is_about_as_fast_as_the_best_fixed_size(count: int, share: float) -> None:
    """Apart from a round of probes and one of cautious packs."""
    best = min(plain(count, size, mild).seconds for size in _SIZES if count // size < 100)
    assert best >= share * (plain(count, "auto", mild).seconds - _PROBING_S)


@pytest.mark.parametrize("total_known", [True, False])
def test_auto_is_fifty_times_faster_than_off_where_packing_pays(total_known: bool) -> None:
    auto = plain(6_000, "auto", mild, total_known)
    assert plain(6_000, "off", mild).seconds >= 50 * auto.seconds


@pytest.mark.parametrize("seconds", [mild, proportional, fast_proportional])
@pytest.mark.parametrize("count", [1, 5, 20, 100, 300, 1_000, 3_000])
def test_auto_is_never_slower_than_off(count: int, seconds: Seconds) -> None:
    off = plain(count, "off", seconds).seconds
    assert plain(count, "auto", seconds).seconds <= 1.01 * off
    assert plain(count, "auto", seconds, False).seconds <= 1.01 * off


MIXES: dict[str, Callable[[int], dict[str, Any]]] = {
    "max_tokens": lambda place: {"max_tokens": (16, 64, 256)[place % 3]},
    "models": lambda place: {"model": "abc"[place % 3]},
    "many temperatures": lambda place: {"temperature": place % 50 / 50},
    "all different": lambda place: {"temperature": place / 1000},
    "n": lambda place: {"n": 1 + place % 4},
    "models and parameters": lambda place: {
        "model": "ab"[place % 2],
        "temperature": (0, 0.5, 1)[place % 3],
        "max_tokens": (16, 32, 64)[place // 6 % 3],
    },
    "anything": lambda place: {
        "max_tokens": random.Random(place).choice((8, 16, 32, 64, 128, 256)),
        "model": "ab"[place % 2],
        "temperature": (0, 0.5, 1)[place % 3],
    },
}


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("count", [20, 300, 1_000])
def test_auto_is_never_slower_than_off_with_mixed_lines(mix: str, count: int) -> None:
    asked = units({"prompt": f"p{place}", "max_tokens": 32, **MIXES[mix](place)} for place in range(count))
    for seconds, slack in ((mild, 1.0), (proportional, 1.02)):
        off = simulate(asked, "off", seconds).seconds
        assert simulate(asked, "auto", seconds).seconds <= slack * off + 1e-9


def test_auto_is_about_as_fast_as_the_best_fixed_size_with_noisy_latency() -> None:
    def noisy(seed: int) -> Seconds:
        noise = random.Random(seed)
        return lambda max_tokens, choices: mild(max_tokens, choices) * noise.lognormvariate(0, 0.2)

    auto = simulate(plain_lines(8_000), "auto", noisy(1)).seconds
    best = min(simulate(plain_lines(8_000), size, noisy(1)).seconds for size in (375, 500, 625, 800, 1000))
    assert best >= 0.8 * auto


def test_requests_stay_well_below_their_timeout() -> None:
    for timeout_s in (5.0, 20.0, 120.0):
        packed = simulate(plain_lines(5_000), "auto", mild, timeout_s=timeout_s)
        assert packed.longest <= 0.45 * timeout_s


def test_scarce_starts_make_larger_requests_and_plentiful_ones_cost_no_time() -> None:
    scarce = simulate(plain_lines(2_000), "auto", mild, starts=10)
    assert len(scarce.sizes) <= 25
    assert scarce.seconds < 130
    free = simulate(plain_lines(2_000), "auto", proportional, starts=None)
    assert free.seconds <= 1.02 * simulate(plain_lines(2_000), "off", proportional, starts=None).seconds


def test_single_requests_fill_thousands_of_slots() -> None:
    result = simulate(plain_lines(20_000), "off", lambda tokens, choices: 1.0, slots=2_000, starts=None)
    assert result.seconds <= 11


@pytest.mark.parametrize("slots", [1, 4, 8, 16, 32])
@pytest.mark.parametrize(("tokens_a_second", "max_tokens"), [(40, 64), (40, 16), (200, 128), (2000, 64)])
def test_a_server_that_shares_its_throughput_runs_into_no_timeout(
    slots: int, tokens_a_second: float, max_tokens: int
) -> None:
    """Its latency grows with all that is in flight, which single requests at the start do not tell."""
    asked = lines(200, max_tokens=max_tokens)
    off, auto = (
        simulate(asked, pack, lambda *_: 0.0, slots=slots, starts=None, shared=tokens_a_second)
        for pack in ("off", "auto")
    )
    assert auto.seconds <= 1.05 * off.seconds
    assert auto.longest <= 0.8 * 120


def test_one_hang_does_not_change_the_fit() -> None:
    latency = Latency()
    for size in (1, 2, 4, 8, 16, 32) * 4:
        latency.add(32, size, mild(32, size))
    latency.add(32, 4, 90.0)
    predicted = latency.request_time(32, 1).seconds(500)
    assert predicted == pytest.approx(mild(32, 500), rel=0.05)


def test_sizes_that_time_out_are_avoided() -> None:
    latency = Latency()
    latency.add(32, 1, 0.5)
    latency.timed_out(32, 100)
    assert latency.ceiling == 1600


def test_room_grows_with_the_rate_and_is_bounded() -> None:
    slot_model = SlotModel(Limits(16, None, 60.0), adapting=True)
    assert slot_model.room(None, 0.0) == 18
    assert slot_model.room(0.5, 0.0) == 16 + 32
    for place in range(48):
        slot_model.enqueued(str(place), lambda: 0.5, 0.0)
    assert slot_model.room(0.5, 0.0) == 0
    assert min(slot_model.free(0.0)) == pytest.approx(1.5)


@pytest.mark.parametrize(("places", "each"), [(None, 0), (8, 12), (16, 6), (32, 3), (127, 1), (128, 0), (256, 0)])
def test_shards_are_large_enough_for_the_workers_places(places: int | None, each: int) -> None:
    """A worker with few places fills many slots only if each of its tasks carries several requests."""
    slot_model = SlotModel(Limits(64, None, 60.0))
    slot_model.places = places
    assert slot_model.per_place == each
    room = slot_model.room(None, 0.0)
    assert room >= 64 + 2 * each
    for number in range(room):
        slot_model.enqueued(str(number), lambda: 1.0, 0.0)
    for number in range(max(1, each)):
        assert slot_model.room(None, 1.0) < max(1, each)
        slot_model.ended(str(number), 1.0)
    assert slot_model.room(None, 1.0) == max(1, each) or each < 4


def test_with_thousands_of_slots_requests_are_enqueued_in_whole_shards() -> None:
    slot_model = SlotModel(Limits(4000, None, 60.0))
    assert slot_model.room(20.0, 0.0) == 4000 + 2000
    for place in range(6000):
        slot_model.enqueued(str(place), lambda: 20.0, 0.0)
    for place in range(249):
        slot_model.ended(str(place), 1.0)
    assert slot_model.room(20.0, 1.0) == 0, "the slots are full, and nearly all that is kept ahead is there"
    slot_model.ended("249", 1.0)
    assert slot_model.room(20.0, 1.0) == 250


@pytest.mark.parametrize("slots", [1, 16, 4000, 19_500, 20_000, 400_000])
@pytest.mark.parametrize("adapting", [False, True])
@pytest.mark.parametrize("seconds", [None, 0.0001, 20.0])
def test_there_is_room_while_a_slot_is_idle(slots: int, adapting: bool, seconds: float | None) -> None:
    slot_model = SlotModel(Limits(slots, None, 60.0), adapting=adapting)
    full = min(slots, 20_000)
    for place in range(full - 1):
        slot_model.enqueued(str(place), lambda: 1.0, 0.0)
    assert slot_model.room(seconds, 0.0) > 0


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 20), st.floats(0, 2), st.floats(0.01, 2)), min_size=1),
    st.lists(st.floats(0, 9), min_size=1, max_size=20),
    st.none() | st.integers(0, 20),
)
@settings(deadline=None)
def test_a_plan_holds_every_prompt_once_and_keeps_to_the_size(
    kinds: list[tuple[int, int, float, float]], free: list[float], starts_left: int | None
) -> None:
    chunks = [Chunk(prompts, most, RequestTime(fixed, each)) for prompts, most, fixed, each in kinds]
    planned = fill_slots(chunks, free, starts_left, 0.1)
    for index, chunk in enumerate(chunks):
        sizes = [request.prompts for request in planned if request.chunk == index]
        assert sum(sizes) == chunk.prompts
        assert max(sizes) <= chunk.most
    assert planned == sorted(planned, key=lambda request: request.begins_s)


@given(st.floats(0.01, 5), st.floats(0.0001, 0.5), st.sampled_from([None, 60, 600]), st.integers(1, 64))
def test_the_best_size_is_the_smallest_within_two_percent_of_the_best_rate(
    fixed_s: float, prompt_s: float, starts: int | None, slots: int
) -> None:
    sizer = PackSizer(Limits(slots, starts, 60.0), 120.0)
    for place in range(9):
        sizer.latency("llama-8b").add(32, 2**place, fixed_s + prompt_s * 2**place)
    request = Request.parse({"prompt": "p", "max_tokens": 32}, ACS)
    pack_key, _ = next(slices_of(Unit(1, "1", request), ACS))

    def rate(prompts: int) -> float:
        return prompts / max(sizer.predicted_s(pack_key, prompts) / slots, sizer.between_starts_s)

    best, enough = sizer.best(pack_key), 0.98 * rate(sizer.most_prompts(pack_key))
    assert rate(best) >= 0.999 * enough
    assert best == 1 or rate(best - 1) <= 1.001 * enough
