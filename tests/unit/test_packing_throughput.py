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
