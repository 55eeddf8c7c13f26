"""The storm's schedule: repeatable, complete, and without faults of one machine at the same time."""

from __future__ import annotations

from itertools import pairwise

import pytest

from support.storm.schedule import FAULTS, SERVER, draw


@pytest.mark.parametrize("seconds", [30, 300, 600])
def test_a_schedule_is_its_seed_s(seconds: float) -> None:
    assert draw(3, seconds) == draw(3, seconds)
    assert str(draw(3, seconds)) != str(draw(4, seconds))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("seconds", [30, 300])
def test_every_fault_comes_and_those_of_redis_one_after_the_other(seed: int, seconds: float) -> None:
    faults = draw(seed, seconds).faults
    assert {event.kind for event in faults} == set(FAULTS)
    for kinds in (SERVER, ("provider",)):
        one_machine_s = [event for event in faults if event.kind.startswith(kinds)]
        for event, following in pairwise(one_machine_s):
            assert event.at + event.lasts <= following.at
    assert [event.kind for event in faults].count("flush redis") == 1
