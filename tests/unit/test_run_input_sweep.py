"""Sweeps: lists in options, grids in files, and each line with each combination from the input to the output."""

from __future__ import annotations

import json
import random
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from brimful.cli.commands import run_command
from brimful.errors import InputError, UsageError
from brimful.outcome import Cause, Failure
from brimful.packing.units import Recovered, Unit
from brimful.run.input.reader import BadLine, Reader, ReadOptions
from brimful.run.input.sources import Source
from brimful.run.input.sweep.grid import make_sweep, parse_models, parse_numbers
from brimful.run.input.sweep.sweep import NO_SWEEP, Sweep
from brimful.run.input.templates.template import load_templates
from brimful.run.output.paths import Order, OutputFormat
from brimful.run.prepare import prepare
from brimful.run.report.prompts import Prompts
from brimful.run.report.reading import read_run
from brimful.run.validate import validate
from support.fake_driver import FakeDriver
from support.runs import PROFILE, options, prompts, records, run, write_lines

TWO_BY_TWO = make_sweep({"model": ["a", "b"], "temperature": [0.0, 0.7]}, {}, None)
LABELS = ["model=a,temperature=0", "model=a,temperature=0.7", "model=b,temperature=0", "model=b,temperature=0.7"]


def read(path: Path, sweep: Sweep, **more: Any) -> list[Unit | BadLine]:
    asked = ReadOptions((Source(str(path)),), **{"defaults": {"max_tokens": 8}, "sweep": sweep, **more})
    return [entry.item for entry in Reader(asked, PROFILE).entries() if entry.item is not None]


def asked_of(path: Path, out: Path, sweep: Sweep = TWO_BY_TWO, **more: Any) -> Any:
    reading = {"sweep": sweep, **more.pop("read", {})}
    return options(path, out=out, read=reading, **more)


def test_lists_in_options() -> None:
    assert parse_models("a, b") == ["a", "b"]
    assert parse_numbers("--temperature", "0,0.7,1", float) == [0.0, 0.7, 1.0]
    assert parse_numbers("--seed", "1..3,10,-2..0", int) == [1, 2, 3, 10, -2, -1, 0]
    assert parse_numbers("--seed", None, int) == []
    assert list(TWO_BY_TWO.labels) == LABELS
    assert not NO_SWEEP
    assert make_sweep({}, {}, None) is NO_SWEEP


@pytest.mark.parametrize("text", ["", "1,,2", "x", "1..", "3..1", "1..2000", "1.5", "nan", "1e400"])
def test_lists_that_are_wrong(text: str) -> None:
    with pytest.raises(UsageError, match="--seed: "):
        parse_numbers("--seed", text, int)


def test_a_grid_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text("temperature: [0, 1]\ncombinations:\n- {model: a, stop: [x]}\n- {model: b, top_p: 0.5}\n")
    found = make_sweep({"seed": [1, 2]}, {"n": 4}, str(path))
    assert len(found) == 8
    assert found.combinations[0] == {"temperature": 0, "model": "a", "stop": ["x"], "top_p": None, "seed": 1}
    assert found.combinations[-1] == {"temperature": 1, "model": "b", "stop": None, "top_p": 0.5, "seed": 2}
    assert len(set(found.labels)) == 8


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must hold fields with lists"),
        ("temprature: [0]", "did you mean temperature"),
        ("temperature: [0, hot]", 'temperature[1]: must be a valid number, not "hot"'),
        ("temperature: [0, .inf]", "temperature[1]: infinity (any number above 1.8e308) is not a JSON number"),
        ("top_p: [.nan]", "top_p[0]: NaN is not a JSON number"),
        ("logit_bias: [{'1': 1}, {'2': [.inf]}]", "logit_bias[1]: infinity"),
        (
            "combinations: [{model: a, seed: 9223372036854775808}]",
            "combinations[0].seed: must be a whole number of 64 bits",
        ),
        (f"top_k: [{2**64}]", "top_k[0]: has a whole number of more than 64 bits"),
        ("max_tokens: [0]", "max_tokens[0]: must be greater than or equal to 1"),
        ("model: [no]", "model[0]: must be a valid string, not false"),
        ("model: []", "model: has no values"),
        ("messages: [a]", "messages cannot be swept"),
        ("combinations: [{model: a}, {model: 3}]", "combinations[1].model: must be a valid string"),
        ("combinations: [{model: a}, {model: a}]", "the combination model=a is listed twice"),
        ("n: [4]", "n is also given as an option"),
        ("seed: [1]\nseed: [2]", "'seed' stands twice in one object"),
        ("seed: [1, 1.0]", "seed[1]: must be a valid integer"),
        ("top_k: [1, 1.0]", "the combination top_k=1 is listed twice"),
        (
            "a: [" + ",".join(map(str, range(40))) + "]\nb: [" + ",".join(map(str, range(40))) + "]",
            "1,600 combinations",
        ),
    ],
)
def test_a_grid_that_is_wrong_is_refused_by_its_place(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "grid.yaml").write_text(text)
    with pytest.raises(UsageError) as caught:
        make_sweep({}, {"n": 4}, str(tmp_path / "grid.yaml"))
    assert says in str(caught.value)


def test_ids_name_the_combination_and_are_never_ambiguous() -> None:
    long = "x" * 100
    sweep = Sweep([{"model": "a#b,c=d%"}, {"system": long}, {"stop": ["a"]}, {"top_p": None}, {"system": "a\nb"}])
    ids = [str(sweep.id("7", index)) for index in range(len(sweep))]
    assert ids[0] == "7#model=a%23b%2Cc%3Dd%25"
    assert ids[3] == "7#top_p=null"
    assert all(id.count("#") == 1 and id.isprintable() and len(id) < 80 for id in ids)
    assert len(set(ids)) == 5


def test_places_are_lines_and_combinations() -> None:
    for line in (1, 2, 900_000):
        for index in range(4):
            place = TWO_BY_TWO.place(line, index)
            record = {**TWO_BY_TWO.describe(place), "choice_index": 0}
            assert (record["line"], record["sweep_index"]) == (line, index)
            assert TWO_BY_TWO.place_of(record, "f:1") == place
    assert NO_SWEEP.describe(9) == {"line": 9}
    assert NO_SWEEP.place_of({"line": 9}, "f:1") == 9


def test_each_line_with_each_combination(tmp_path: Path) -> None:
    lines = [{"id": 7, "prompt": "a", "temperature": 1.5, "answer": "x"}, {"prompt": "b"}]
    units = read(write_lines(tmp_path / "in.jsonl", lines), TWO_BY_TWO)
    assert [unit.id for unit in units] == [f"{id}#{label}" for id in (7, 2) for label in LABELS]
    assert [unit.line for unit in units] == list(range(1, 9))
    for unit, combination in zip(units, [*TWO_BY_TWO.combinations] * 2, strict=True):
        assert isinstance(unit, Unit)
        assert {**unit.request.fields, **combination} == unit.request.fields
    found = validate(ReadOptions((Source(str(tmp_path / "in.jsonl")),), sweep=TWO_BY_TWO), PROFILE)
    assert (found.lines, found.requests, found.combinations) == (2, 8, 4)
    assert found.models == {"a": 4, "b": 4}
    assert "1 line set temperature: the sweep's values are used in its place" in found.notes


def test_null_leaves_a_field_out_and_both_names_of_max_tokens_are_one(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "in.jsonl", [{"prompt": "a", "top_p": 0.5, "max_completion_tokens": 9}])
    one, two = read(path, Sweep([{"top_p": None, "max_tokens": 3}, {"top_p": 1, "max_tokens": 4}]))
    assert isinstance(one, Unit)
    assert isinstance(two, Unit)
    assert dict(one.request.fields) == {"prompt": "a", "max_tokens": 3}
    assert dict(two.request.fields) == {"prompt": "a", "max_tokens": 4, "top_p": 1}


def test_a_sweep_of_system_prompts(tmp_path: Path) -> None:
    user = {"role": "user", "content": "a"}
    lines = [{"messages": [user]}, {"messages": [{"role": "system", "content": "own"}, user]}]
    one, none, bad, own = read(write_lines(tmp_path / "in.jsonl", lines), Sweep([{"system": "Be."}, {"system": None}]))
    assert isinstance(one, Unit)
    assert isinstance(none, Unit)
    assert isinstance(bad, BadLine)
    assert isinstance(own, Unit)
    assert [each["content"] for each in one.request.fields["messages"]] == ["Be.", "a"]
    assert none.request.fields["messages"] == [user]
    assert "system: the line's messages have a system prompt" in bad.message


def test_a_bad_line_is_one_fault_and_a_bad_combination_its_own(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "in.jsonl", [{"id": "bad", "prompt": []}, {"prompt": "a"}, {"id": "x", "prompt": 3}])
    sweep = make_sweep({"max_tokens": [8, 40_000]}, {}, None)
    first, good, large, third = read(path, sweep)
    assert isinstance(first, BadLine)
    assert isinstance(good, Unit)
    assert isinstance(large, BadLine)
    assert isinstance(third, BadLine)
    assert (first.id, large.id, third.id) == ("bad", "2#max_tokens=40000", "x")
    out = tmp_path / "out.jsonl"
    summary = run(asked_of(path, out, sweep))
    assert summary is not None
    assert (summary.requests, summary.succeeded, summary.failed, summary.left) == (4, 1, 3, 0)
    failed = records(out.with_name("out.jsonl.errors.jsonl"))
    assert [(record["line"], record.get("sweep_index")) for record in failed] == [(1, None), (2, 1), (3, None)]
    again = run(asked_of(path, out, sweep))
    assert again is not None
    assert (again.succeeded, again.failed, again.resumed) == (1, 3, 1)
    write_lines(path, [{"prompt": "now good"}, {"prompt": "a"}, {"id": "x", "prompt": "good"}])
    again = run(asked_of(path, out, sweep))
    assert again is not None
    assert (again.succeeded, again.failed, again.left) == (3, 3, 0)  # the large combination of each line


def test_limit_counts_lines(tmp_path: Path) -> None:
    summary = run(asked_of(prompts(tmp_path, 5), tmp_path / "out.jsonl", read={"limit": 2}))
    assert summary is not None
    assert (summary.requests, summary.rollouts) == (8, 8)


def test_the_output_names_line_and_combination_in_order(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    path = prompts(tmp_path, 3, n=2, answer="x")
    summary = run(asked_of(path, out, order=Order.INPUT), FakeDriver(reverse=True))
    assert summary is not None
    found = records(out)
    places = [(record["line"], record["sweep_index"], record["choice_index"]) for record in found]
    assert places == [(line, index, choice) for line in (1, 2, 3) for index in range(4) for choice in (0, 1)]
    for record in found:
        assert record["sweep"] == TWO_BY_TWO.combinations[record["sweep_index"]]
        assert record["id"] == f"p{record['line'] - 1}#{LABELS[record['sweep_index']]}"
        assert record["input"] == {"answer": "x"}


def test_a_killed_sweep_is_resumed_without_loss_or_repetition(tmp_path: Path) -> None:
    path, out = prompts(tmp_path, 7, n=3), tmp_path / "out.jsonl"
    rng = random.Random(7)

    def driver(**more: Any) -> FakeDriver:
        return FakeDriver(lambda unit, prompt, choice: f"{unit.id}/{choice}", split=rng, **more)

    for _ in range(4):
        assert run(asked_of(path, out), driver(die_after=rng.randint(1, 4))) is None
    summary = run(asked_of(path, out), driver())
    assert summary is not None
    assert 0 < summary.resumed < 84
    found = records(out)
    assert (summary.succeeded, summary.rollouts, len(found)) == (28, 84, 84)
    assert len({(record["line"], record["sweep_index"], record["choice_index"]) for record in found}) == 84
    assert all(record["text"] == f"{record['id']}/{record['choice_index']}" for record in found)


def test_another_sweep_is_refused(tmp_path: Path) -> None:
    path, out = prompts(tmp_path, 2), tmp_path / "out.jsonl"
    assert run(asked_of(path, out)) is not None
    other = make_sweep({"model": ["a", "c"], "temperature": [0.0, 0.7]}, {}, None)
    for sweep in (other, NO_SWEEP):
        with pytest.raises(UsageError, match=r'with other parameters: .*sweep of model was \["a", "b"\] and is '):
            prepare(asked_of(path, out, sweep), PROFILE)
    turned = make_sweep({"temperature": [0.0, 0.7], "model": ["a", "b"]}, {}, None)
    with pytest.raises(UsageError, match=r'sweep was \["model", "temperature"\] and is \["temperature", "model"\]'):
        prepare(asked_of(path, out, turned), PROFILE)
    some = Sweep(TWO_BY_TWO.combinations[:3])
    with pytest.raises(UsageError, match=r'and is "3 combinations of model, temperature \(sha256 '):
        prepare(asked_of(path, out, some), PROFILE)
    out.with_name("out.jsonl.run.json").unlink()
    for sweep in (other, NO_SWEEP):
        with pytest.raises(InputError, match=r"out.jsonl:\d+: was sampled in another sweep"):
            prepare(asked_of(path, out, sweep), PROFILE)
    summary = run(asked_of(path, out))
    assert summary is not None
    assert summary.resumed == 8


def test_a_changed_line_is_named_by_its_number_in_the_input(tmp_path: Path) -> None:
    path, out = prompts(tmp_path, 3), tmp_path / "out.jsonl"
    assert run(asked_of(path, out)) is not None
    path.write_text(path.read_text().replace("Say 1", "Tell 1"))
    with pytest.raises(InputError, match="line 2 of the input changed"):
        prepare(asked_of(path, out), PROFILE)


def test_failures_are_retried_by_combination(tmp_path: Path) -> None:
    path, out = prompts(tmp_path, 3), tmp_path / "out.jsonl"

    def answer(unit: Unit, prompt: int, choice: int) -> str | Failure:
        failed = unit.request.fields["model"] == "b" and unit.line % 4 == 0
        return Failure(Cause.TIMEOUT, "no answer") if failed else "yes"

    summary = run(asked_of(path, out), FakeDriver(answer))
    assert summary is not None
    assert (summary.succeeded, summary.failed) == (9, 3)
    assert [row["failed"] for row in summary.sweep] == [0, 0, 0, 3]
    again = FakeDriver()
    summary = run(asked_of(path, out, retry_errors=True), again)
    assert summary is not None
    assert (summary.succeeded, summary.failed) == (12, 0)
    assert [unit.id for unit in again.asked] == [f"p{line}#{LABELS[3]}" for line in range(3)]


def test_the_summary_compares_the_combinations(tmp_path: Path) -> None:
    def answer(unit: Unit, prompt: int, choice: int) -> tuple[str, str]:
        return ("x" * 10, "length") if unit.request.fields["temperature"] else ("", "stop")

    summary = run(asked_of(prompts(tmp_path, 5, n=2), tmp_path / "out.jsonl"), FakeDriver(answer))
    assert summary is not None
    assert [row["sweep"] for row in summary.sweep] == TWO_BY_TWO.combinations
    assert [row["rollouts"] for row in summary.sweep] == [10] * 4
    assert [row["characters_each"] for row in summary.sweep] == [0, 10, 0, 10]
    assert [row["finish_reasons"] for row in summary.sweep] == [{"stop": 10}, {"length": 10}] * 2
    assert sum(row["prompt_tokens"] + row["completion_tokens"] for row in summary.sweep) == summary.tokens
    shown = [value for label, value in summary.rows() if label == "sweep" or not label]
    assert shown[0].startswith("model=a,temperature=0: 10 rollouts (stop 10), ")


def test_the_report_finds_the_prompt_of_each_line(tmp_path: Path) -> None:
    path, out = prompts(tmp_path, 3, topic="tea"), tmp_path / "out.jsonl"
    mine = load_templates("{{ prompt }} of {{ topic }}", None, None, None)
    assert run(asked_of(path, out, read={"templates": mine})) is not None
    with closing(Prompts.of(out, read_run(out), ())) as found:
        assert found.note == ""
        assert [found.get(line) for line in (1, 2, 3, 4)] == [[f"Say {n} of tea"] for n in range(3)] + [None]


def test_openai_batch_has_one_line_for_each_combination(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    body = {"prompt": "a", "model": "mine"}
    lines = [{"custom_id": f"c{n}", "method": "POST", "url": "/v1/completions", "body": body} for n in range(2)]
    path = write_lines(tmp_path / "in.jsonl", lines)
    assert run(asked_of(path, out, form=OutputFormat.OPENAI_BATCH)) is not None
    found = records(out)
    assert [record["custom_id"] for record in found] == [f"c{n}#{label}" for n in range(2) for label in LABELS]
    assert len({record["id"] for record in found}) == 8
    assert [record["brimful"]["sweep"] for record in found] == [*TWO_BY_TWO.combinations] * 2


def test_what_an_earlier_try_left_in_flight_belongs_to_its_combination(tmp_path: Path) -> None:
    path, out = prompts(tmp_path, 2), tmp_path / "out.jsonl"
    driver = FakeDriver(recovered=Recovered([], frozenset({(2, 0, 0), (7, 0, 0)})))
    run(asked_of(path, out), driver)
    assert [unit.line for unit in driver.asked] == [1, 3, 4, 5, 6, 8]


def test_the_command_s_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(prompts(tmp_path, 3))
    arguments = ["validate", path, "--model", "a,b", "--temperature", "0,0.7,1", "--seed", "1..2", "--max-tokens", "8"]
    assert run_command([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["lines"], found["requests"], found["combinations"]) == (3, 36, 12)
    assert found["first"] == {"prompt": "Say 0", "max_tokens": 8, "model": "a", "temperature": 0.0, "seed": 1}
    assert run_command(["validate", path, "--model", "a", "--temperature", "0.7", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["requests"], found["combinations"]) == (3, 1)
    assert run_command(["validate", path, "--temperature", "warm"]) == 2
    assert "--temperature: 'warm' is not a number; write for instance 0.7 or 0,0.7,1" in capsys.readouterr().err
