"""When slots come free, and how many more requests are enqueued."""

from __future__ import annotations

import pytest

from brimful.packing.slot_model import Limits, SlotModel, Weights


def model(slots: int = 4, starts: int | None = None, window_s: float = 60.0, *, adapting: bool = False) -> SlotModel:
    return SlotModel(Limits(slots, starts, window_s), adapting=adapting)


def enqueue(there: SlotModel, *seconds: float, now: float = 0.0, name: str = "q") -> None:
    for place, each in enumerate(seconds):
        there.enqueued(f"{name}{place}", lambda each=each: each, now)  # type: ignore[misc]


def test_the_rate_of_starts_in_the_long_run() -> None:
    assert Limits(16, 600, 60.0).start_rate == 10
    assert Limits(16, None, 60.0).start_rate == float("inf")


@pytest.mark.parametrize(
    ("weights", "share"),
    [
        (Weights(), 100.0),
        (Weights(1.0, 1.0, 2.0), 50.0),
        (Weights(3.0, 1.0, 4.0), 75.0),
        (Weights(1.0, 1.0, 10.0), 20.0),  # no run has less than 20
        (Weights(4.0, 0.5, 10.0), 160.0),  # the smallest has 20
    ],
)
def test_a_run_s_share_of_what_is_enqueued(weights: Weights, share: float) -> None:
    assert weights.share(100.0, 20.0) == share


def test_slots_are_free_when_what_was_enqueued_has_ended() -> None:
    there = model(3)
    assert list(there.free(0.0)) == [0, 0, 0]
    enqueue(there, 5.0, 2.0)
    assert len(there) == 2
    assert sorted(there.free(0.0)) == [0, 2, 5]
    assert sorted(there.free(1.0)) == [0, 1, 4]
    enqueue(there, 3.0, 10.0, 10.0, now=1.0, name="w")
    assert sorted(there.free(1.0)) == [4, 11, 13], "the fourth follows the one that ends after 1 s, the fifth the third"
    assert sorted(there.free(3.5)) == [1.5, 10.1, 10.5], "one that is overdue has a twentieth of its time left"


def test_what_is_enqueued_after_the_slots_were_computed_is_added() -> None:
    there = model(2)
    enqueue(there, 5.0, 2.0)
    assert sorted(there.free(0.0)) == [2, 5]
    enqueue(there, 4.0, name="w")
    assert sorted(there.free(0.0)) == [5, 6]
    there.ended("q1", 0.0)
    assert sorted(there.free(0.0)) == [4, 5], "the waiting one has its slot"
    there.ended("w0", 0.0)
    assert sorted(there.free(0.0)) == [0, 5]
    there.ended("unknown", 0.0)
    assert len(there) == 1


def test_slots_that_are_added_later_count() -> None:
    there = model(1)
    enqueue(there, 5.0, 5.0)
    assert list(there.free(0.0)) == [10]
    there.limits = Limits(3, None, 60.0)
    assert sorted(there.free(0.0)) == [0, 5, 5] or sorted(there.free(0.0)) == [0, 0, 10]


def test_starts_left_in_the_window() -> None:
    assert model().starts_left(0.0) is None
    there = model(2, starts=5)
    assert there.starts_left(0.0) == 5
    enqueue(there, 1.0, 1.0, 1.0, now=10.0)
    assert there.starts_left(10.0) == 2, "of what waits each takes one as well"
    there.ended("q0", 20.0)
    assert there.starts_left(69.9) == 2
    assert there.starts_left(70.0) == 4, "two of the three began a window ago"
    assert there.starts_left(80.0) == 5
    enqueue(there, *[1.0] * 9, now=80.0, name="w")
    assert there.starts_left(80.0) == 0


def test_the_rate_is_that_of_the_last_three_seconds() -> None:
    there = model(9)
    enqueue(there, *[1.0] * 6)
    for place, now in enumerate((1.0, 1.0, 1.0, 2.0, 2.0, 3.0)):
        there.ended(f"q{place}", now)
    assert there.rate(3.0) == 2.0
    assert there.rate(3.9) == 2.0
    assert there.rate(4.0) == 1.0
    assert there.rate(6.0) == 0.0


@pytest.mark.parametrize(
    ("slots", "starts", "adapting", "seconds", "room"),
    [
        (16, None, False, None, 24),  # half of the slots ahead
        (16, None, True, None, 18),  # two ahead
        (160, None, True, None, 180),  # an eighth
        (16, None, False, 2.0, 36),  # 2.5 s of 8 a second
        (16, None, True, 1.0, 32),  # 1 s of 16 a second
        (16, 120, False, 2.0, 24),  # the starts allow 2 a second
        (16, 600, False, 1.0, 41),  # and 10
        (1, None, False, None, 3),
        (15_000, None, False, None, 20_000),
    ],
)
def test_how_many_requests_are_enqueued_at_first(
    slots: int, starts: int | None, adapting: bool, seconds: float | None, room: int
) -> None:
    assert model(slots, starts, adapting=adapting).room(seconds, 0.0) == room


def test_a_measured_rate_counts_as_far_as_starts_allow_it() -> None:
    for starts, room in ((None, 16 + 25), (120, 24)):
        there = model(16, starts)
        enqueue(there, *[1.0] * 30)
        for place in range(30):
            there.ended(f"q{place}", 1.0)
        assert there.rate(1.0) == 10
        assert there.room(100.0, 1.0) == room


def test_places_of_workers_and_weights_change_the_room() -> None:
    there = model(16)
    there.places = 4
    assert there.per_place == 6
    assert there.room(None, 0.0) == 28, "two tasks' requests ahead"
    there.weights = Weights(1.0, 1.0, 4.0)
    assert there.room(None, 0.0) == 28, "enough to fill the slots alone"
    assert there.room(1.0, 0.0) == 28
    there.weights = Weights(2.0, 1.0, 3.0)
    assert there.room(None, 0.0) == 56
    there.places = 32
    assert there.per_place == 0
    there.places = 31
    assert there.per_place == 1


def test_room_comes_in_portions() -> None:
    there = model(64)
    assert there.room(None, 0.0) == 96
    enqueue(there, *[1.0] * 93)
    assert there.room(None, 0.0) == 0, "an eighth of the 32 ahead at once"
    there.ended("q0", 0.0)
    assert there.room(None, 9.0) == 4
    empty = model(1)
    empty.places = 1
    assert empty.per_place == 2
    enqueue(empty, 1.0)
    assert empty.room(None, 0.0) == 4
