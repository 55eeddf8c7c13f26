"""What a provider reaches over all requests at once, and a run that has nothing to learn about it."""

from __future__ import annotations

import random

import pytest

from brimful.config import Settings
from brimful.packing.batcher import Batcher
from brimful.packing.pack_size import PackSizer
from brimful.packing.slot_model import Limits, SlotModel
from brimful.packing.throughput import Throughput
from brimful.packing.units import Unit
from brimful.request import Request


def test_requests_at_the_same_time_add_up() -> None:
    reached = Throughput()
    assert reached.most is None
    reached.add(100, 10.0, 10.9)  # four buckets
    assert reached.most == pytest.approx(100)
    reached.add(100, 10.5, 10.9)
    assert reached.most == pytest.approx(300)


def test_it_is_what_counting_in_every_bucket_gives() -> None:
    chance = random.Random(7)
    reached, counted = Throughput(), {0: 1.0}
    reached.add(1, 0.0, 0.1)  # the oldest bucket that is kept
    for number in range(500):
        ended = 50 + number / 20
        began = ended - chance.uniform(0, 20)
        reached.add(64, began, ended)
        first, last = int(began / 0.25), int(ended / 0.25)
        for bucket in range(first, last + 1):
            counted[bucket] = counted.get(bucket, 0.0) + 64 / (last + 1 - first)
        assert reached.most == pytest.approx(max(counted.values()) / 0.25)


def test_what_was_reached_long_ago_does_not_count() -> None:
    reached = Throughput()
    reached.add(1000, 0.0, 0.2)
    reached.add(10, 200.0, 200.2)
    assert reached.most == pytest.approx(40)


def test_requests_of_one_prompt_are_sent_ahead_of_the_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer could teach how many prompts they should hold."""
    monkeypatch.setenv("BRIMFUL_PROVIDER", "kios")
    profile = Settings().profile
    limits = Limits(4, None, 60.0)
    slots = SlotModel(limits)
    batcher = Batcher(profile, "auto", PackSizer(limits, 60.0), slots)
    for line in range(10):
        request = Request.parse({"messages": [{"role": "user", "content": f"q{line}"}]}, profile)
        batcher.add(Unit(line + 1, str(line), request))
    for number in range(6):
        chosen = batcher.next(0.0, None, False)
        assert chosen is not None, f"request {number} waits for answers"
        slots.enqueued(str(number), lambda: 1.0, 0.0)


def test_what_was_reached_in_the_last_two_minutes_counts() -> None:
    reached = Throughput()
    reached.add(1000, 0.0, 0.2)
    reached.add(500, 100.0, 100.2)
    reached.add(10, 120.0, 120.2)
    assert reached.most == pytest.approx(4000)
    reached.add(10, 130.0, 130.2)
    assert reached.most == pytest.approx(2000)
    reached.add(10, 220.0, 220.2)
    assert reached.most == pytest.approx(2000)
    reached.add(10, 220.3, 220.4)
    assert reached.most == pytest.approx(40)


def test_a_request_that_began_before_the_first_is_spread_over_what_is_kept() -> None:
    reached = Throughput()
    reached.add(10, 50.0, 50.2)
    reached.add(100, 49.0, 50.2)  # of its five quarters of a second only the last is kept
    assert reached.most == pytest.approx(440)
    reached.add(1000, 30.0, 49.9)
    assert reached.most == pytest.approx(440), "it ended before anything that is kept"


def test_a_long_request_reaches_little_at_once() -> None:
    reached = Throughput()
    reached.add(480, 0.0, 119.9)
    assert reached.most == pytest.approx(4)
    reached.add(481, 1000.0, 1240.0)  # twice as long as anything is kept
    assert reached.most == pytest.approx(4)
