"""Which fields of a line are sent and which are its columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from brimful.errors import SettingError, UsageError
from brimful.names import Mode
from brimful.packing.batcher import Batcher
from brimful.packing.pack_size import PackSizer
from brimful.packing.packing import slices_of
from brimful.packing.slot_model import Limits, SlotModel
from brimful.packing.units import Unit
from brimful.profile import Profile, get_profile
from brimful.run.input.reader import BadLine, Reader, ReadOptions
from brimful.run.input.sources import Source
from brimful.run.input.survey import survey
from support.runs import PROFILE, options, records, run, write_lines


def read(tmp_path: Path, *lines: Any, profile: Profile = PROFILE, **more: Any) -> list[Unit | BadLine]:
    path = write_lines(tmp_path / "in.jsonl", list(lines))
    options = ReadOptions((Source(str(path)),), **{"defaults": {"max_tokens": 8}, **more})
    return [entry.item for entry in Reader(options, profile).entries() if entry.item is not None]


def one(tmp_path: Path, line: Any, **more: Any) -> Unit:
    (unit,) = read(tmp_path, line, **more)
    assert isinstance(unit, Unit), unit
    return unit


def test_a_field_that_the_profile_does_not_list_is_a_column(tmp_path: Path) -> None:
    line = {"answer": None, "prompt": "2+2=", "seed": 3, "meta": {"a": [1]}, "temperature": None, "id": 7}
    unit = one(tmp_path, line)
    assert dict(unit.request.fields) == {"prompt": "2+2=", "max_tokens": 8, "seed": 3}
    assert dict(unit.columns) == {"answer": None, "meta": {"a": [1]}}
    assert (unit.id, unit.given_id) == ("7", 7)


@pytest.mark.parametrize(
    ("provider", "mode", "sent"),
    [
        ("acs", Mode.COMPLETION, {"steering", "suffix"}),
        ("acs", Mode.JOB, {"steering", "suffix"}),
        ("acs", Mode.CHAT, {"steering", "metadata"}),
        ("kios", Mode.CHAT, {"metadata"}),
        ("openai", Mode.CHAT, {"metadata"}),
        ("local", Mode.COMPLETION, {"suffix", "top_k", "mirostat"}),
        ("local", Mode.CHAT, {"metadata", "top_k", "mirostat", "chat_template_kwargs"}),
    ],
)
def test_each_endpoint_of_a_profile_has_its_list(tmp_path: Path, provider: str, mode: Mode, sent: set[str]) -> None:
    names = ["steering", "suffix", "metadata", "top_k", "mirostat", "chat_template_kwargs"]
    line = {"prompt": "a", "model": "m", **dict.fromkeys(names, 1)}
    unit = one(tmp_path, line, profile=get_profile(provider), mode=mode)
    assert unit.request.fields.keys() - {"prompt", "messages", "model", "max_tokens"} == sent
    assert unit.columns.keys() == set(names) - sent


def test_the_endpoint_is_the_line_s_own(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "a"}]
    assert one(tmp_path, {"messages": messages, "metadata": {"a": "b"}}).request.fields["metadata"] == {"a": "b"}
    assert one(tmp_path, {"prompt": "a", "mode": "chat", "metadata": {}}).request.fields["metadata"] == {}
    assert one(tmp_path, {"prompt": "a", "metadata": {"a": "b"}}).columns == {"metadata": {"a": "b"}}


def test_fields_that_are_named_are_sent(tmp_path: Path) -> None:
    line = {"prompt": "a", "top_k": 5, "min_p": 0.1, "mine": 1, "extra_body": {"theirs": 2, "seed": 4}, "other": 3}
    unit = one(tmp_path, line, passed=("top_k",), defaults={"min_p": 0.5})
    assert dict(unit.request.fields) == {"prompt": "a", "top_k": 5, "min_p": 0.1, "theirs": 2, "seed": 4}
    assert dict(unit.columns) == {"mine": 1, "other": 3}
    (bad,) = read(tmp_path, {"prompt": "a", "extra_body": [1]})
    assert isinstance(bad, BadLine)
    assert "extra_body: must be an object" in bad.message


def test_fields_that_are_named_as_columns_are_not_sent(tmp_path: Path) -> None:
    line = {"prompt": "a", "model": "gpt-4", "mode": "train", "user": "bob", "system": "x"}
    unit = one(tmp_path, line, columns=("model", "mode", "system"))
    assert unit.request.fields.keys() == {"prompt", "max_tokens", "user"}
    assert dict(unit.columns) == {"model": "gpt-4", "mode": "train", "system": "x"}
    assert survey(ReadOptions((Source(str(tmp_path / "in.jsonl")),), columns=("model", "mode")), PROFILE).bad == 1
    (bad,) = read(tmp_path, line)
    assert isinstance(bad, BadLine)
    assert bad.message.endswith("job (or --column mode, if it is not meant to be sent)")
    with pytest.raises(UsageError, match="--column"):
        ReadOptions((Source(str(tmp_path / "in.jsonl")),), columns=("a",), passed=("b", "a")).check()


def test_the_body_of_a_batch_line_is_sent_as_it_stands(tmp_path: Path) -> None:
    body = {"prompt": "a", "answer": 4, "extra_body": {"x": 1}}
    line = {"custom_id": 7, "method": "POST", "url": "/v1/completions", "body": body, "answer": "5", "id": "x"}
    unit = one(tmp_path, line, defaults={})
    assert dict(unit.request.fields) == body
    assert dict(unit.columns) == {"answer": "5", "id": "x"}
    assert (unit.id, unit.given_id) == ("7", 7)
    # A table may have a column of that name.
    unit = one(tmp_path, {"messages": [{"role": "user", "content": "a"}], "body": "text", "custom_id": 1})
    assert dict(unit.columns) == {"body": "text", "custom_id": 1}


def test_a_profile_of_ones_own_extends_the_list(tmp_path: Path) -> None:
    own = get_profile("acs").model_copy(update={"more_fields": ("mine",), "extra_body": {"safety": "off"}})
    unit = one(tmp_path, {"prompt": "a", "mine": 1, "safety": "on", "steering": {}}, profile=own)
    assert unit.request.fields.keys() == {"prompt", "max_tokens", "mine", "safety", "steering"}
    file = tmp_path / "profiles.toml"
    file.write_text('[mine]\nfields = ["opnai"]\n')
    with pytest.raises(SettingError, match=r"\[mine\] fields: .*unknown set of fields 'opnai': known are openai, acs"):
        get_profile("mine", file)


def test_the_same_id_as_text_and_as_a_number_is_a_duplicate(tmp_path: Path) -> None:
    first, second = read(tmp_path, {"id": 7, "prompt": "a"}, {"id": "7", "prompt": "b", "answer": 1})
    assert isinstance(first, Unit)
    assert isinstance(second, BadLine)
    assert "line 1" in second.message
    assert (second.id, dict(second.columns)) == ("7", {"answer": 1})


def test_lines_whose_columns_differ_share_a_request(tmp_path: Path) -> None:
    units = read(tmp_path, *({"prompt": f"{n}+{n}=", "answer": str(n + n)} for n in range(400)))
    assert len({key.key for unit in units if isinstance(unit, Unit) for key, _ in slices_of(unit, PROFILE)}) == 1


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ('{"prompt": "a", "score": NaN}', "score: NaN is not a JSON number"),
        (f'{{"prompt": "a", "huge": {1 << 80}, "scores": [1.0, 1e999]}}', "scores: infinity"),
        ('{"prompt": "a", "x": ' + "[" * 600 + "]" * 600 + "}", "nested too deeply"),
        ('{"prompt": "a", "x": ' + '{"a":' * 600 + "1" + "}" * 601, "nested too deeply"),
    ],
    ids=["nan", "infinity", "lists", "objects"],
)
def test_a_column_that_could_not_be_written_again_is_refused(tmp_path: Path, raw: str, words: str) -> None:
    (bad,) = read(tmp_path, raw)
    assert isinstance(bad, BadLine)
    assert words in bad.message


def test_odd_columns_come_out_as_they_went_in(tmp_path: Path) -> None:
    columns = {
        "": 1, "\ud800": "\ud800 \u2028\x85", "text": "x", "line": 0, "usage": None, "input": {"input": []},
        "huge": 1 << 80, "deep": json.loads("[" * 400 + "]" * 400), "float": -0.0, "brimful": True,
    }  # fmt: skip
    source, out = write_lines(tmp_path / "in.jsonl", [{"prompt": "a", "id": 1.5, **columns}]), tmp_path / "out.jsonl"
    run(options(source, out=out))
    (record,) = records(out)
    assert (record["id"], record["line"], record["text"], record["input"]) == (1.5, 1, "1.5/0/0", columns)


def test_columns_count_in_what_is_held_in_memory(tmp_path: Path) -> None:
    limits = Limits(16, 600, 60.0)
    sizer = PackSizer(limits, 120)
    batcher = Batcher(PROFILE, "auto", sizer, SlotModel(limits, adapting=True))
    (unit,) = read(tmp_path, {"prompt": ["a", "b"], "text": "x" * (10 << 20)})
    assert isinstance(unit, Unit)
    lines = 0
    while not batcher.full:
        batcher.add(unit)
        lines += 1
    assert lines == 5
    while batcher.next(0.0, 0, True) is not None:
        pass
    assert batcher.held_bytes == 0
