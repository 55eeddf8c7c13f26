"""Options that are given twice."""

from __future__ import annotations

import pytest

from brimful.cli.commands import run_command


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "in.jsonl", "-o", "a", "-o", "b"], "--output: is given 2 times, and takes effect once; give it once"),
        (["run", "in.jsonl", "-o", "a", "--n", "1", "--n=4"], "--n: is given 2 times"),
        (["validate", "in.jsonl", "--model", "a", "--model", "b"], "to sample with each value, write --model A,B"),
        (["validate", "in.jsonl", "--pack", "off", "--pack", "off"], "--pack: is given 2 times"),
        (["serve", "--port", "1", "--port", "2"], "--port: is given 2 times"),
        (["validate", "in.jsonl", "--param", "top_p=1", "--param", "top_p=0.5"], "--param top_p: is given twice"),
        (["validate", "in.jsonl", "--seed", "1", "--param", "seed=2"], "--seed and --param seed set the same field"),
        (["limits", "set", "--slots", "1", "--slots", "2"], "--slots: is given 2 times"),
        (["gateway", "--port", "1", "--port", "2", "--faults", "list"], "--port: is given 2 times"),
    ],
)
def test_an_option_with_one_value_is_given_once(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(arguments) == 2
    assert says in capsys.readouterr().err


def test_flags_and_options_that_collect_may_be_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["validate", "none.jsonl", "--chat", "--chat", "--param", "a=1", "--param", "b=2"]
    assert run_command(arguments) == 2
    assert "none.jsonl: no such file" in capsys.readouterr().err
