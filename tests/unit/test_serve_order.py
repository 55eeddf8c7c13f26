"""The order of the waiters of several front doors: by weight, whichever front door they wait at."""

from __future__ import annotations

from collections import Counter

import pytest

from brimful_worker.admission.places import Places
from brimful_worker.serve.callers.order import Order, Waiting


def first(waiting: dict[str, Waiting], served: dict[str, float], wanted: int) -> Counter[str]:
    """How many of the first places in the fleet's queue each front door has."""
    order, places = Order(waiting, served), []
    for door, here in waiting.items():
        ages, step = order.ages(door, 1000)
        found = Places(ages, step, 0.0)
        number = sum(number for _, number, _ in here.values())
        places += [(found.since(position), door) for position in range(number)]
    return Counter(door for _, door in sorted(places)[:wanted])


def test_the_requests_of_a_single_caller_keep_their_places() -> None:
    here, there = {"a": (1.0, 200, 5.0)}, {"b": (1.0, 1, 5.0)}
    assert not Order({"here": here, "there": here}, {"a": 3.0}).concerns("here")
    assert not Order({"here": {**here, **there}}, {}).concerns("here")
    assert not Order({"there": there, "elsewhere": here}, {}).concerns("here")
    assert Order({"here": here, "there": there}, {}).concerns("here")


def test_front_doors_get_what_their_callers_are_due() -> None:
    apart: dict[str, Waiting] = {"one": {"a": (3.0, 100, 900.0)}, "two": {"b": (1.0, 50, 10.0), "c": (1.0, 50, 10.0)}}
    assert first(apart, {}, 50)["one"] == pytest.approx(30, abs=8)
    assert first(apart, {"a": 5.0}, 50)["one"] == pytest.approx(24, abs=8)
    assert first(apart, {"a": 100.0}, 50)["one"] == 0
    both: dict[str, Waiting] = {"one": {"a": (1.0, 90, 0.0)}, "two": {"a": (1.0, 10, 0.0), "b": (1.0, 100, 0.0)}}
    assert first(both, {}, 40)["one"] == pytest.approx(18, abs=8)


def test_callers_as_a_whole_are_as_old_as_they_are() -> None:
    order = Order({"one": {"a": (1.0, 30, 4000.0)}, "two": {"b": (5.0, 10, 8000.0)}}, {"a": 7.0, "b": 3.0})
    ages = [age for door, most in (("one", 30), ("two", 10)) for age in order.ages(door, most)[0]]
    assert sum(ages) / 40 == pytest.approx(5.0, rel=0.05)
    assert order.tolerance_s == pytest.approx(1.25)


def test_what_has_come_just_now_is_put_into_an_order() -> None:
    order = Order({"one": {"a": (1.0, 2, 0.0)}, "two": {"b": (1.0, 2, 0.0)}}, {"a": 1.0})
    assert order.ages("two", 9)[0][0] > order.ages("one", 9)[0][0]
