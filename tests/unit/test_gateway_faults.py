"""Which requests meet which fault, and how the rules are parsed."""

from __future__ import annotations

import pytest

from brimful.errors import SettingError
from brimful_worker.gateway.faults.rules import KINDS, WORK, Faults, parse_faults


def faults_of(faults: str, requests: int, kind: str = "completions", seed: int = 0) -> list[str]:
    chosen = Faults(faults, seed)
    found = [chosen.choose(kind, [f"prompt {number}"]) for number in range(requests)]
    return ["" if fault is None else fault.name for fault in found]


def test_the_next_n_the_nth_and_every_nth() -> None:
    assert faults_of("500:x2", 4) == ["500", "500", "", ""]
    assert faults_of("503:#3", 4) == ["", "", "503", ""]
    assert faults_of("504:%2", 4) == ["", "504", "", "504"]
    assert faults_of("reset", 2) == ["reset", "reset"]
    assert faults_of("500:x1,reset:x1", 3) == ["500", "reset", ""]


def test_requests_with_a_prompt() -> None:
    assert faults_of("filter:@prompt 2", 4) == ["", "", "filter", ""]


def test_probabilities_add_up_and_follow_the_seed() -> None:
    found = faults_of("500:0.2,reset:0.1", 10_000)
    assert 1800 < found.count("500") < 2200
    assert 800 < found.count("reset") < 1200
    assert found == faults_of("500:0.2,reset:0.1", 10_000)
    assert found != faults_of("500:0.2,reset:0.1", 10_000, seed=1)
    assert faults_of("500:0", 100) == [""] * 100
    assert faults_of("500:1", 100) == ["500"] * 100


def test_kinds() -> None:
    assert parse_faults("500")[0].kinds == WORK
    assert parse_faults("any/500")[0].kinds == KINDS
    assert parse_faults("any/reset")[0].kinds == KINDS - {"job"}
    assert parse_faults("jobfail")[0].kinds == {"job"}
    assert faults_of("poll/500", 1) == [""]
    assert faults_of("poll/500", 1, kind="poll") == ["500"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("501:0.1", "unknown fault '501'"),
        ("500:1.5", "must be a probability"),
        ("500:x0", "must be a probability"),
        ("500:often", "must be a probability"),
        ("500:@", "must be a probability"),
        ("hang=soon", "invalid parameter 'soon' for hang"),
        ("429=soon", "invalid parameter 'soon' for 429"),
        ("pull/500", "unknown kind 'pull'"),
        ("job/reset", "no connection"),
    ],
)
def test_an_invalid_rule_is_named(text: str, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        parse_faults(f"500:x1,{text}")
