"""Which request meets which fault."""

from __future__ import annotations

import pytest

from brimful_worker.gateway.faults.faults import KINDS, WORK, FaultError, Faults, parse_faults


def met(faults: str, requests: int, kind: str = "completions", seed: int = 0) -> list[str]:
    chosen = Faults(faults, seed)
    found = [chosen.choose(kind, [f"prompt {number}"]) for number in range(requests)]
    return ["" if fault is None else fault.name for fault in found]


def test_counts_nths_and_everys() -> None:
    assert met("500:x2", 4) == ["500", "500", "", ""]
    assert met("503:#3", 4) == ["", "", "503", ""]
    assert met("504:%2", 4) == ["", "504", "", "504"]
    assert met("reset", 2) == ["reset", "reset"]
    assert met("500:x1,reset:x1", 3) == ["500", "reset", ""]


def test_a_prompt_that_meets_it() -> None:
    assert met("filter:@prompt 2", 4) == ["", "", "filter", ""]


def test_probabilities_add_up_and_follow_the_seed() -> None:
    found = met("500:0.2,reset:0.1", 10_000)
    assert 1800 < found.count("500") < 2200
    assert 800 < found.count("reset") < 1200
    assert found == met("500:0.2,reset:0.1", 10_000)
    assert found != met("500:0.2,reset:0.1", 10_000, seed=1)
    assert met("500:0", 100) == [""] * 100
    assert met("500:1", 100) == ["500"] * 100


def test_kinds() -> None:
    assert parse_faults("500")[0].kinds == WORK
    assert parse_faults("any/500")[0].kinds == KINDS
    assert parse_faults("any/reset")[0].kinds == KINDS - {"job"}
    assert parse_faults("jobfail")[0].kinds == {"job"}
    assert met("poll/500", 1) == [""]
    assert met("poll/500", 1, kind="poll") == ["500"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("501:0.1", "no fault is called '501'"),
        ("500:1.5", "must be a probability"),
        ("500:x0", "must be a probability"),
        ("500:often", "must be a probability"),
        ("500:@", "must be a probability"),
        ("hang=soon", "no parameter for hang"),
        ("429=soon", "no parameter for 429"),
        ("pull/500", "none of any"),
        ("job/reset", "no connection"),
    ],
)
def test_what_is_not_understood_is_named(text: str, says: str) -> None:
    with pytest.raises(FaultError, match=says):
        parse_faults(f"500:x1,{text}")
