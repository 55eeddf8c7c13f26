"""Which request comes next, of the lines that are held."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from brimful.errors import RequestTooLarge
from brimful.names import Mode
from brimful.packing.batcher import Batcher
from brimful.packing.pack_size import PackSizer
from brimful.packing.slot_model import Limits, SlotModel
from brimful.packing.units import PackOption
from support.packed import ACS, packed, unit

MIB = 1024 * 1024


PACKS: tuple[PackOption, ...] = ("off", "auto", 5)


def made(
    pack: PackOption, slots: int = 16, starts: int | None = None, window_s: float = 60.0
) -> tuple[Batcher, PackSizer, SlotModel]:
    limits = Limits(slots, starts, window_s)
    sizer, slot_model = PackSizer(limits, 120.0), SlotModel(limits, adapting=pack == "auto")
    return Batcher(ACS, pack, sizer, slot_model), sizer, slot_model


def add(batcher: Batcher, *lines: int, **fields: Any) -> None:
    for line in lines:
        batcher.add(unit(line, **fields))


def lines(chosen: Any) -> list[int] | None:
    return None if chosen is None else [item.unit.line for item in chosen[1]]


def learn(sizer: PackSizer, prompt_s: float, fixed_s: float = 0.0, sizes: tuple[int, ...] = (1, 2, 4, 8)) -> None:
    for size in sizes * 6:
        sizer.learn(packed("x", 1).pack_key, size, 0.0, fixed_s + prompt_s * size)


# -- off, and a fixed size ----------------------------------------------------------------------------------------


def test_off_sends_each_line_as_it_was_asked() -> None:
    batcher, *_ = made("off")
    batcher.add(unit(1, prompt=["a", "b", "c"], n=2))
    add(batcher, 2)
    batcher.add(unit(3, prompt=["a", "b"], n=3, wanted=((0, 0), (1, 0), (1, 1))))
    assert batcher.held == 3 + 1 + 2
    sent = [batcher.next(0.0, None, False) for _ in range(4)]
    assert [lines(each) for each in sent] == [[1, 1, 1], [2], [3], [3]]
    assert (batcher.held, batcher.held_bytes, batcher.next(0.0, None, False)) == (0, 0, None)


def test_a_line_that_fits_no_request_is_not_held() -> None:
    for pack in PACKS:
        batcher, *_ = made(pack)
        with pytest.raises(RequestTooLarge):
            add(batcher, 1, max_tokens=40_000)
        assert (batcher.held, batcher.next(0.0, 0, True)) == (0, None)


def test_a_fixed_size_waits_until_a_request_is_full_or_nothing_more_comes() -> None:
    batcher, *_ = made(3)
    add(batcher, 1, 2)
    assert batcher.next(0.0, None, False) is None
    assert batcher.next(0.0, 1, False) is None
    add(batcher, 3, 4)
    assert lines(batcher.next(0.0, None, False)) == [1, 2, 3]
    assert batcher.pack == 3
    assert batcher.next(0.0, None, False) is None
    assert lines(batcher.next(0.0, 0, False)) == [4]
    add(batcher, 5)
    assert lines(batcher.next(0.0, None, True)) == [5]
    assert (batcher.held, batcher.held_bytes) == (0, 0)


def test_groups_are_served_in_the_order_in_which_they_are_full() -> None:
    batcher, *_ = made(2)
    add(batcher, 1, temperature=0.1)
    add(batcher, 2, 3, temperature=0.2)
    add(batcher, 4, temperature=0.1)
    add(batcher, 5, 6, 7, temperature=0.2)
    sent = [lines(batcher.next(0.0, None, False)) for _ in range(4)]
    assert sent == [[2, 3], [5, 6], [1, 4], None]
    assert lines(batcher.next(0.0, None, True)) == [7]


def test_a_full_group_is_before_an_older_one_that_is_not() -> None:
    batcher, *_ = made(2)
    add(batcher, 1, temperature=0.1)
    add(batcher, 2, 3, temperature=0.2)
    assert lines(batcher.next(0.0, None, False)) == [2, 3]
    assert batcher.next(0.0, None, False) is None


def test_the_oldest_group_is_first_where_none_is_full() -> None:
    batcher, *_ = made(5)
    for line, temperature in ((1, 0.2), (2, 0.1), (3, 0.2)):
        add(batcher, line, temperature=temperature)
    assert lines(batcher.next(0.0, None, True)) == [1, 3]
    assert lines(batcher.next(0.0, None, True)) == [2]


def test_a_fixed_size_keeps_to_what_one_request_may_carry() -> None:
    batcher, *_ = made(5000)
    for line in range(20):
        add(batcher, line, max_tokens=2000)
    assert len(lines(batcher.next(0.0, None, False)) or []) == 16


# -- how much is held ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pack", "enough"), [("off", 256), (5, 256), (64, 256), (65, 260), (100, 400)])
def test_how_many_lines_are_enough(pack: PackOption, enough: int) -> None:
    batcher, *_ = made(pack)
    add(batcher, *range(enough - 1))
    assert not batcher.full
    add(batcher, enough)
    assert batcher.full


def test_48_mib_are_enough_whatever_is_sent() -> None:
    for pack in PACKS:
        batcher, *_ = made(pack)
        small = unit(1)
        batcher.add(replace(small, columns_bytes=48 * MIB - 7))
        assert not batcher.full
        batcher.add(small)
        assert batcher.full
        assert batcher.held_bytes == 48 * MIB - 7 + 2 * packed("x", 1).size


@pytest.mark.parametrize(("slots", "enough"), [(1, 256), (2, 512)])
def test_auto_holds_two_rounds_of_probes(slots: int, enough: int) -> None:
    batcher, sizer, _ = made("auto", slots)
    learn(sizer, 0.1)
    add(batcher, *range(enough - 1))
    assert not batcher.full
    add(batcher, enough)
    assert batcher.full


def test_auto_holds_two_requests_of_each_group() -> None:
    batcher, sizer, _ = made("auto", 1, 60, 600.0)
    learn(sizer, 0.001, 0.5, (1, 4, 16, 64))
    most = sizer.best(packed("x", 1).pack_key)
    assert most > 200
    add(batcher, *range(most))
    add(batcher, *range(most), temperature=0.5)
    add(batcher, *range(2 * most - 1))
    assert not batcher.full
    add(batcher, 0)
    assert batcher.full


# -- what is put back or dropped ----------------------------------------------------------------------------------


def test_what_is_put_back_is_sent_as_it_is_before_all_others() -> None:
    batcher, *_ = made(2)
    add(batcher, 1, 2)
    back = packed("x", 7, 8, 9)
    batcher.put_back(back.pack_key, [back.slices[:1], back.slices[1:]])
    assert (batcher.held, batcher.held_bytes) == (5, 5 * back.slices[0].held_bytes)
    assert [lines(batcher.next(0.0, None, False)) for _ in range(4)] == [[7], [8, 9], [1, 2], None]
    assert (batcher.held, batcher.held_bytes) == (0, 0)


def test_lines_that_are_dropped_are_sent_no_more() -> None:
    batcher, *_ = made(9)
    add(batcher, 1, 2)
    add(batcher, 3, temperature=0.5)
    back = packed("x", 3, 4, 5)
    batcher.put_back(back.pack_key, [back.slices[:1], back.slices[1:]])
    batcher.drop({1, 3, 5})
    each = back.slices[0].held_bytes
    assert (batcher.held, batcher.held_bytes) == (2, 2 * each)
    assert [lines(batcher.next(0.0, 0, True)) for _ in range(3)] == [[4], [2], None]
    assert (batcher.held, batcher.held_bytes) == (0, 0)


def test_the_targets_of_what_is_held() -> None:
    batcher, *_ = made(9)
    assert batcher.targets == set()
    add(batcher, 1, model="a")
    back = packed("x", 2, model="b")
    batcher.put_back(back.pack_key, [back.slices])
    assert batcher.targets == {(Mode.COMPLETION, "a"), (Mode.COMPLETION, "b")}


# -- auto ---------------------------------------------------------------------------------------------------------


def enqueue(slot_model: SlotModel, *ids: str) -> None:
    for id in ids:
        slot_model.enqueued(id, lambda: 1.0, 0.0)


def test_the_first_requests_are_probes_of_different_sizes() -> None:
    batcher, _, slot_model = made("auto", slots=6)
    add(batcher, *range(2000))
    sizes = []
    for place in range(6):
        chosen = batcher.next(5.0, None, False)
        assert chosen is not None
        sizes.append(len(chosen[1]))
        enqueue(slot_model, str(place))
    assert sizes == [10, 20, 40] * 2
    assert batcher.next(5.0, None, False) is None, "their answers say how large the next may be"
    slot_model.ended("0", 5.5)
    assert batcher.next(6.0, None, False) is None
    assert batcher.next(6.1, None, False) is not None, "the slots do not wait for longer than a second"


def test_what_is_left_is_probed_first_where_it_is_plenty() -> None:
    for count, size in ((1024, 120), (1025, 30)):  # 4096 tokens for each slot
        batcher, *_ = made("auto", slots=2)
        add(batcher, *range(count))
        assert len(lines(batcher.next(0.0, 0, False)) or []) == size


def test_probes_after_the_first_answer_have_other_sizes() -> None:
    batcher, sizer, _ = made("auto", slots=6)
    add(batcher, *range(2000))
    sizer.learn(packed("x", 1).pack_key, 128, 0.0, 0.5)
    sizes = []
    for _ in range(3):
        chosen = batcher.next(0.0, None, False)
        assert chosen is not None
        sizes.append(len(chosen[1]))
    assert sizes == [128, 64, 128]


@pytest.mark.parametrize(("starts", "round_"), [(None, 6), (600, 6), (24, 4), (6, 3)])
def test_a_round_of_probes_takes_few_of_scarce_starts(starts: int | None, round_: int) -> None:
    batcher, _, slot_model = made("auto", slots=6, starts=starts)
    add(batcher, *range(2000))
    for place in range(round_):
        assert batcher.next(0.0, None, False) is not None
        enqueue(slot_model, str(place))
    assert batcher.next(0.0, None, False) is None
    assert batcher.next(9.0, None, False) is None, "as many are in flight as teach something"


def test_probing_is_over_once_the_latency_is_known() -> None:
    batcher, sizer, slot_model = made("auto", slots=6)
    add(batcher, *range(3000))
    learn(sizer, 0.01, 0.1)
    enqueue(slot_model, *map(str, range(6)))
    chosen = batcher.next(0.0, None, False)
    assert chosen is not None
    assert len(chosen[1]) == sizer.best(chosen[0])


@pytest.mark.parametrize(("mode", "shares"), [("chat", False), ("completion", True)])
def test_lines_that_cannot_share_a_request_are_sent_without_probes(mode: str, shares: bool) -> None:
    batcher, _, slot_model = made("auto", slots=2)
    for line in range(70):  # more groups than are planned
        add(batcher, line, temperature=line / 100, mode=mode)
    enqueue(slot_model, "0", "1")
    assert lines(batcher.next(0.0, None, True)) == [0]
    add(batcher, 99, temperature=0.05, mode=mode)  # a second one of its group
    assert (batcher.next(0.0, None, True) is None) is shares, "answers say whether it pays"


def test_what_is_left_is_divided_so_that_all_slots_end_together() -> None:
    batcher, sizer, _ = made("auto", slots=4)
    learn(sizer, 0.1)
    add(batcher, *range(10))
    sizes = []
    while (chosen := batcher.next(0.0, 0, False)) is not None:
        sizes.append(len(chosen[1]))
    assert sum(sizes) == 10
    assert len(sizes) >= 4, "packing does not pay: each further prompt takes as long as the first"
    assert max(sizes) <= 3


def test_lines_to_come_are_a_part_of_the_plan() -> None:
    batcher, sizer, _ = made("auto", slots=4)
    learn(sizer, 0.001, 1.0, (1, 4, 16, 64))
    add(batcher, *range(4))
    chosen = batcher.next(0.0, 4, False)
    assert lines(chosen) == [0, 1], "of eight lines, two for each slot"
    assert lines(batcher.next(0.0, None, True)) == [2]


def test_many_lines_are_not_planned_as_the_last_ones() -> None:
    batcher, sizer, _ = made("auto", slots=2)
    learn(sizer, 0.1, 0.2)
    size = sizer.best(packed("x", 1).pack_key)
    add(batcher, *range(20 * size))
    assert len(lines(batcher.next(0.0, 0, True)) or []) == size
