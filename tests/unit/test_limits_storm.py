"""The storm over the limits: its schedule, and what its audit calls broken."""

from __future__ import annotations

from itertools import pairwise

import pytest

from support.ledger import Visit
from support.limits_storm.audit import TAUGHT_S, UNDER_WAY_S, InForce, Limits, broken
from support.limits_storm.schedule import FAULTS, SERVER, draw

DEFAULTS, FEW, MANY = Limits(1, 2), Limits(2, 3), Limits(4, 9)


def test_a_shorter_storm_is_the_beginning_of_a_longer_one() -> None:
    longer = draw(3, 600)
    shorter = draw(3, 200)
    assert shorter == longer[: len(shorter)]
    assert longer != draw(4, 600)
    assert {event.kind for event in longer} == set(FAULTS)


@pytest.mark.parametrize("seed", range(20))
def test_redis_has_one_fault_at_a_time(seed: int) -> None:
    faults = [event for event in draw(seed, 300) if event.kind in SERVER]
    for event, following in pairwise(faults):
        assert event.at + event.lasts <= following.at


def test_a_limit_that_was_replaced_excuses_what_was_under_way() -> None:
    limits = InForce(DEFAULTS)
    assert limits.at(0) == {DEFAULTS}
    limits.change(10, 11, MANY)
    limits.change(20, 21, FEW)
    assert limits.at(9) == {DEFAULTS}
    assert limits.at(15) == {DEFAULTS, MANY}
    assert limits.at(21 + UNDER_WAY_S) == {DEFAULTS, MANY, FEW}
    assert limits.at(22 + UNDER_WAY_S) == {DEFAULTS, FEW}


@pytest.mark.parametrize("unsure", ["lost", "lost meanwhile", "failed"])
def test_a_change_that_may_not_be_in_force_excuses_until_the_next(unsure: str) -> None:
    limits = InForce(DEFAULTS)
    limits.change(10, 11, MANY)
    if unsure == "lost meanwhile":
        limits.memory_lost(20.5)
    limits.change(20, 21, FEW, sure=unsure != "failed")
    if unsure == "lost":
        limits.memory_lost(21 + TAUGHT_S + 0.1)
        assert limits.at(40) == {DEFAULTS, FEW}
        limits.memory_lost(21 + TAUGHT_S - 0.1)
    assert limits.at(40) == {DEFAULTS, MANY, FEW}
    limits.change(50, 51, FEW)
    assert limits.at(60) == {DEFAULTS, FEW}


def visits(*sent: tuple[float, int]) -> list[Visit]:
    return [Visit("p", at, at, active) for at, active in sent]


def test_what_exceeds_the_limits_in_force_is_told() -> None:
    limits = InForce(DEFAULTS)
    limits.change(0, 0, FEW)
    assert broken(visits((10, 1), (10.5, 2), (11, 2), (16, 1)), limits, 6.0) == []
    (found,) = broken(visits((10, 1), (10.5, 2), (11, 3), (16.1, 1)), limits, 6.0)
    assert found[1] == "3 active, of 2 slots"
    (found,) = broken(visits((10, 1), (10.5, 2), (11, 2), (15.9, 1)), limits, 6.0)
    assert found[1] == "4 starts in 6 s, of 3"
    limits.change(0, 0, Limits(2, 0))
    assert broken(visits((10, 1), (10.5, 2), (11, 2), (15.9, 1)), limits, 6.0) == []
