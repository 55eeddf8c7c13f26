"""Unknown fields that may be misspelt, and faults that are reported once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from brimful.errors import BadRequest, InputError
from brimful.fields import likely
from brimful.request import Request
from brimful.run.input.field_notes import UnknownFields
from brimful.run.input.reader import ReadOptions
from brimful.run.input.sources import Source
from brimful.run.prepare import prepare
from brimful.run.validate import Validation, validate
from support.runs import PROFILE, options, write_lines


def _validate(path: Path, **more: Any) -> Validation:
    return validate(ReadOptions((Source(str(path)),), **{"defaults": {"max_tokens": 8}, **more}), PROFILE)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("max_token", "max_tokens"), ("temprature", "temperature"), ("promt", "prompt"), ("top-p", "top_p"),
     ("meta", None), ("colour", None)],
)  # fmt: skip
def test_the_likely_field_of_a_misspelt_name(name: str, meant: str | None) -> None:
    assert likely(name) == meant


def test_columns_are_told_once_and_misspelt_fields_pointed_out(tmp_path: Path) -> None:
    lines = [{"prompt": "a", "id": f"p{line}", "meta": {"line": line}, "top_k": 5} for line in range(4)]
    path = write_lines(tmp_path / "in.jsonl", [*lines, {"prompt": "b", "max_token": 7}])
    found = _validate(path)
    assert found.notes == [
        "`meta`, `top_k` and `max_token` are carried through, not sent",
        "`top_k` is a field of other requests, but acs lists none of that name for this endpoint: --pass top_k sends "
        "it",
        "`max_token`: did you mean max_tokens? Rename it, or --pass max_token sends it under its own name",
    ]
    assert found.sent == ["prompt", "max_tokens", "model"]
    assert found.columns[2] == {"name": "max_token", "lines": 1, "likely": "max_tokens"}
    assert dict(found.rows())["carried"] == "meta, top_k, max_token"
    prepared = prepare(options(path, out=tmp_path / "out.jsonl"), PROFILE)
    assert prepared.notes == found.notes
    prepared.close()


def test_fields_that_are_sent_though_unknown_are_reported(tmp_path: Path) -> None:
    bodies = [{"prompt": "a", "meta": line, "max_token": 7} for line in range(4)]
    found = _validate(
        write_lines(tmp_path / "in.jsonl", [{"custom_id": f"{n}", "body": b} for n, b in enumerate(bodies)])
    )
    assert found.notes == [
        "field 'max_token' is unknown to brimful and sent unchanged (4 lines); did you mean max_tokens?",
        "field 'meta' is unknown to brimful and sent unchanged (4 lines); "
        "its value differs between lines, so those lines cannot share a request",
    ]
    assert found.unknown_fields[0] == {"name": "max_token", "lines": 4, "varies": False, "likely": "max_tokens"}
    assert found.columns == []


@pytest.mark.parametrize(("columns", "rest"), [(9, "1 other"), (10, "2 others"), (60, "42 or more others")])
def test_of_many_columns_the_first_are_named(tmp_path: Path, columns: int, rest: str) -> None:
    line = {"prompt": "a"} | {f"c{place}": 1 for place in range(columns)}
    (note,) = _validate(write_lines(tmp_path / "in.jsonl", [line])).notes
    assert note == f"{', '.join(f'`c{place}`' for place in range(8))} and {rest} are carried through, not sent"


@pytest.mark.parametrize(
    ("lines", "more", "told"),
    [
        ([{"prompt": "a"}, {"prompt": "b"}, {"prompt": "c", "max_tokens": 4}], {}, True),
        ([{"prompt": "a"}], {}, False),
        ([{"prompt": "a"}, {"prompt": "b"}], {"pack": "off"}, False),
        ([{"prompt": "a", "mode": "chat"}, {"prompt": "b", "workload": "interactive"}, {"prompt": "c"}], {}, False),
    ],
    ids=["told", "alone", "off", "others"],
)
def test_lines_that_are_not_packed_without_max_tokens_are_reported(
    tmp_path: Path, lines: list[Any], more: dict[str, Any], told: bool
) -> None:
    path = write_lines(tmp_path / "in.jsonl", lines)
    prepared = prepare(options(path, out=tmp_path / "out.jsonl", read={"defaults": {}}, **more), PROFILE)
    prepared.close()
    expected = f"2 lines set no max_tokens, and {PROFILE.name} takes such prompts one a request: they are not packed "
    assert prepared.notes == ([f"{expected}(--max-tokens N)"] if told else [])


def test_the_number_of_unknown_names_is_bounded() -> None:
    unknown = UnknownFields()
    for place in range(1000):
        unknown.add({"prompt": "a", f"x{place}": 1})
    assert len(list(unknown)) == 50
    assert unknown.notes(10)[-1] == "and 40 or more other unknown fields"


def test_a_misspelt_prompt_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r":1: has no prompt.*it has 'promt': did you mean prompt\?"):
        _validate(write_lines(tmp_path / "in.jsonl", [{"promt": "a"}]))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"system": "x"}, "system: a system prompt needs the chat endpoint"),
        ({"defaults": {"max_tokens": "x"}}, "max_tokens: must be a whole number of at least 1, not 'x'"),
        ({"defaults": {"model": ""}}, "model: is empty"),
    ],
)
def test_a_fault_of_the_command_s_options_is_reported_once(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    path = write_lines(tmp_path / "in.jsonl", [{"prompt": "a"}] * 30)
    with pytest.raises(InputError) as caught:
        _validate(path, **more)
    text = str(caught.value)
    assert text.startswith(said)
    assert text.endswith("(the same for all 30 lines)")
    assert text.count(said) == 1


def test_bad_lines_are_listed_in_order_beside_a_duplicate(tmp_path: Path) -> None:
    good = {"prompt": "a", "id": "x"}
    path = write_lines(tmp_path / "in.jsonl", [good, good, "{", *({"prompt": "a", "n": 0} for _ in range(20)), good])
    found = _validate(path)
    assert (found.requests, found.bad, len(found.faults)) == (24, 23, 10)
    assert ":2: the id 'x' is already used by line 1" in found.faults[0]
    assert ":3: is not JSON" in found.faults[1]


def test_two_prompts_for_one_request_are_refused() -> None:
    for raw, more in (("x", {"prompt": "other"}), ({"prompt": "x"}, {"prompt": "y"}), ("x", {"messages": [{}]})):
        with pytest.raises(BadRequest, match="given twice"):
            Request.parse(raw, PROFILE, **more)
    assert Request.parse({}, PROFILE, prompt="x").prompts == ["x"]


def test_the_figures_read_as_sentences(tmp_path: Path) -> None:
    found = _validate(write_lines(tmp_path / "in.txt", ["a"]), defaults={})
    rows = dict(found.rows())
    assert rows["tokens"] == "without a bound, since some lines set no max_tokens (--max-tokens)"
    assert rows["input"] == "1 line, 1 prompt, 0 bad"
    assert rows["pack off"].startswith("1 API call, ")
    assert rows["packed"].startswith("at least 1 API call of one prompt each, ")
