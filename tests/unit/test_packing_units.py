"""Units of work: options of a run, weights, shares of usage, and figures that begin at nothing."""

from __future__ import annotations

from typing import Any

import pytest

from brimful.errors import SettingError
from brimful.outcome import Outcome, Rollout
from brimful.packing.units import (
    Delivered,
    DriveStatus,
    PackOption,
    checked_weight,
    manifest_from,
    parse_pack,
    weight_of,
)
from support.packed import unit


@pytest.mark.parametrize(
    ("text", "pack"),
    [
        ("auto", "auto"),
        (" Auto ", "auto"),
        ("off", "off"),
        ("OFF", "off"),
        ("1", "off"),
        (1, "off"),
        ("2", 2),
        ("01", 1),
        (250, 250),
    ],
)
def test_what_pack_takes(text: str | int, pack: PackOption) -> None:
    assert parse_pack(text) == pack


@pytest.mark.parametrize("text", ["", "0", "-3", "1.5", "many", "٣", 0, -1])
def test_what_pack_refuses(text: str | int) -> None:
    with pytest.raises(SettingError, match=r"--pack: .* is not off, auto or a whole number of at least 1"):
        parse_pack(text)


@pytest.mark.parametrize("weight", [0.01, 0.5, 1, 7, 100.0])
def test_weights_from_a_hundredth_to_a_hundred(weight: float) -> None:
    assert checked_weight(weight) == weight
    assert weight_of({"weight": weight}) == weight


@pytest.mark.parametrize("weight", [0.0099, 0, -1, 100.1, True, "2", None, float("nan"), float("inf")])
def test_other_weights_are_refused_and_in_a_message_count_as_one(weight: Any) -> None:
    with pytest.raises(SettingError, match=r"is not a number from 0\.01 to 100"):
        checked_weight(weight)
    assert weight_of({"weight": weight}) == 1
    assert weight_of({}) == 1


@pytest.mark.parametrize("raw", [[[1, "a", 0]], [[1, "a", 0, 5]], [["x", "a", 0, [0]]], [7]])
def test_what_is_no_manifest_is_refused(raw: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        manifest_from(raw)


def test_rollouts_pay_by_length_and_choice_0_for_its_prompt() -> None:
    rollouts = [Rollout(0, 0, "aaaa", None, {}), Rollout(0, 1, "bb", None, {}), Rollout(1, 0, "", None, {})]
    usage = {"prompt_tokens": 10, "completion_tokens": 70, "total_tokens": 80}
    shares = Delivered(1, "1", rollouts, "m", usage, Outcome("r"), 1).rollout_usages()
    assert shares == [
        {"prompt_tokens": 5, "completion_tokens": 40, "total_tokens": 45},
        {"prompt_tokens": 0, "completion_tokens": 20, "total_tokens": 20},
        {"prompt_tokens": 5, "completion_tokens": 10, "total_tokens": 15},
    ]
    assert Delivered(1, "1", rollouts, "m", None, Outcome("r"), 1).rollout_usages() == [None] * 3


def test_figures_begin_at_nothing() -> None:
    status = DriveStatus()
    figures = {name: getattr(status, name) for name in DriveStatus.__dataclass_fields__}
    assert {name: value for name, value in figures.items() if value} == {"pack": 1}
    assert unit(1).columns_bytes == 0
