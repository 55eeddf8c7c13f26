"""Input files: formats, lines, ids and the faults of each."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import zstandard

from brimful.errors import BrimfulError, InputError, UsageError
from brimful.names import Mode
from brimful.packing.units import Unit
from brimful.run.input.formats import InputFormat
from brimful.run.input.reader import BadLine, Reader, ReadOptions
from brimful.run.input.sources import Source
from brimful.run.input.survey import survey
from support.runs import PROFILE, write_lines


def read(*paths: Path, **more: Any) -> list[Unit | BadLine]:
    options = ReadOptions(tuple(Source(str(path)) for path in paths), **{"defaults": {"max_tokens": 8}, **more})
    options.check()
    return [entry.item for entry in Reader(options, PROFILE).entries() if entry.item is not None]


def one(tmp_path: Path, line: Any, name: str = "in.jsonl", **more: Any) -> Unit | BadLine:
    (item,) = read(write_lines(tmp_path / name, [line]), **more)
    return item


def good(tmp_path: Path, line: Any, name: str = "in.jsonl", **more: Any) -> Unit:
    item = one(tmp_path, line, name, **more)
    assert isinstance(item, Unit), item
    return item


def test_a_line_s_fields_override_the_command_s(tmp_path: Path) -> None:
    line = {"id": 7, "prompt": "a", "n": 2, "temperature": None, "steering": {"x": [1]}}
    unit = good(tmp_path, line, defaults={"n": 4, "max_tokens": 8, "temperature": 0.5})
    assert unit.id == "7"
    assert dict(unit.request.fields) == {
        "prompt": "a", "n": 2, "max_tokens": 8, "temperature": 0.5, "steering": {"x": [1]},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("prompt", "prompts"), [("a", 1), (["a", "b"], 2), ([1, 2, 3], 1), ([[1, 2], [3]], 2)], ids=str
)
def test_every_form_of_a_prompt_is_read(tmp_path: Path, prompt: Any, prompts: int) -> None:
    assert len(good(tmp_path, {"prompt": prompt}).request.prompts) == prompts


def test_openai_batch_lines_are_read(tmp_path: Path) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 5}
    line = {"custom_id": "c-1", "method": "POST", "url": "/v1/chat/completions", "body": body}
    unit = good(tmp_path, line)
    assert (unit.id, unit.request.mode, dict(unit.request.fields)) == ("c-1", Mode.CHAT, body)
    line = {"custom_id": "c-2", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a"}}
    assert good(tmp_path, line).request.mode is Mode.COMPLETION


def test_provider_bodies_and_messages_are_read(tmp_path: Path) -> None:
    unit = good(tmp_path, {"model": "m", "prompt": "a", "max_tokens": 3, "stop": ["\n"]})
    assert unit.id == "1"
    assert unit.request.fields["stop"] == ["\n"]
    messages = [{"role": "user", "content": "hi"}]
    unit = good(tmp_path, {"messages": messages}, system="Be brief.")
    assert unit.request.mode is Mode.CHAT
    assert unit.request.fields["messages"] == [{"role": "system", "content": "Be brief."}, *messages]
    own = [{"role": "system", "content": "own"}, *messages]
    assert good(tmp_path, {"messages": own}, system="Be brief.").request.fields["messages"] == own
    assert good(tmp_path, {"prompt": "hi"}, mode=Mode.CHAT).request.fields["messages"] == messages


def test_plain_text_ends_lines_at_newlines_only(tmp_path: Path) -> None:
    text = "one\x85still one\u2028still\x0b\x0c\x1c\r\n\n  \nfour"
    (tmp_path / "in.txt").write_bytes(b"\xef\xbb\xbf" + text.encode())
    units = read(tmp_path / "in.txt")
    assert [(unit.line, unit.id, unit.request.prompts) for unit in units if isinstance(unit, Unit)] == [
        (1, "1", ["one\x85still one\u2028still\x0b\x0c\x1c"]),
        (4, "4", ["four"]),
    ]


def test_unicode_line_breaks_inside_json_are_kept(tmp_path: Path) -> None:
    text = "a\u2028b\u2029c\x85d"
    (tmp_path / "in.jsonl").write_bytes(('{"prompt": "' + text + '"}\r\n{"prompt": "\\ud800"}').encode())
    units = read(tmp_path / "in.jsonl")
    assert [unit.request.prompts[0] for unit in units if isinstance(unit, Unit)] == [text, "\ud800"]


@pytest.mark.parametrize("name", ["in.jsonl.gz", "in.jsonl.zst", "misnamed.jsonl", "in"])
def test_compressed_input_is_unpacked(tmp_path: Path, name: str) -> None:
    data = b'{"prompt": "a"}\n{"prompt": "b"}\n'
    packed = zstandard.compress(data) if "zst" in name else gzip.compress(data)
    (tmp_path / name).write_bytes(packed)
    assert len(read(tmp_path / name)) == 2


def test_several_files_are_numbered_as_one_input(tmp_path: Path) -> None:
    first = write_lines(tmp_path / "a.jsonl", [{"prompt": "a"}, {"prompt": "b"}])
    second = write_lines(tmp_path / "b.txt", ["c", "d"])
    items = read(first, second)
    assert [item.line for item in items] == [1, 2, 3, 4]
    (tmp_path / "c.jsonl").write_text('{"prompt": "x"}\n{\n')
    bad = read(first, tmp_path / "c.jsonl")[-1]
    assert isinstance(bad, BadLine)
    assert (bad.where, bad.line) == (f"{tmp_path / 'c.jsonl'}:2", 4)


@pytest.mark.parametrize(
    ("name", "line", "kind"),
    [
        ("in.txt", "{curly} prompts are prompts", "text"),
        ("in.txt", '{"prompt": "but this is JSON"}', "json"),
        ("in", '{"prompt": "a"}', "json"),
        ("in", "[INST] hello", "text"),
        ("in.md", "[1] a note", "text"),
        ("in.jsonl", '  {"prompt": "a"}  ', "json"),
    ],
)
def test_the_format_is_detected(tmp_path: Path, name: str, line: str, kind: str) -> None:
    prompt = good(tmp_path, line, name).request.prompts[0]
    assert (prompt == line) is (kind == "text")


def test_a_format_can_be_forced(tmp_path: Path) -> None:
    line = '{"prompt": "a"}'
    assert good(tmp_path, line, form=InputFormat.TEXT).request.prompts == [line]
    assert good(tmp_path, "a,b", "in.csv", form=InputFormat.TEXT).request.prompts == ["a,b"]


def test_a_line_too_large_for_one_request_is_read(tmp_path: Path) -> None:
    unit = good(tmp_path, {"prompt": ["a"] * 300, "n": 100, "max_tokens": 1000})
    assert unit.request.choices == 30_000


BAD_LINES = {
    "not JSON": ("{not json", "is not JSON"),
    "cut JSON": ('{"prompt": "a', "is not JSON"),
    "Python": ("{'prompt': None}", "json.dumps"),
    "pretty-printed": ("{", "jq -c"),
    "two objects": ('{"prompt": "a"} {"prompt": "b"}', "on its own line"),
    "an array": ("[1, 2]", "is an array; each line must be an object"),
    "a string": ('"hello"', "is a string; each line"),
    "null": ("null", "is null; each line"),
    "no prompt": ('{"id": "x"}', "has no prompt"),
    "null prompt": ('{"prompt": null}', "prompt: is null"),
    "another name": ('{"question": "why?"}', "--prompt-column question"),
    "empty list": ('{"prompt": []}', "prompt: must be"),
    "mixed list": ('{"prompt": ["a", 1]}', "prompt: a list holds only"),
    "number": ('{"prompt": 5}', "prompt: must be"),
    "both": ('{"prompt": "a", "messages": [{"role": "user", "content": "b"}]}', "one of them, not both"),
    "bad messages": ('{"messages": ["hi"]}', "messages[0]: must be an object with a role"),
    "n of 0": ('{"prompt": "a", "n": 0}', "n: must be a whole number of at least 1"),
    "n of 2.5": ('{"prompt": "a", "n": 2.5}', "n: must be a whole number"),
    "max_tokens in words": ('{"prompt": "a", "max_tokens": "ten"}', "max_tokens: must be a whole number"),
    "too large": ('{"prompt": "a", "max_tokens": 32001}', "32,001"),
    "too many": ('{"prompt": "a", "n": 1000000000}', "spread them over lines"),
    "stream": ('{"prompt": "a", "stream": true}', "stream: streaming is not supported"),
    "NaN": ('{"prompt": "a", "temperature": NaN}', "temperature: NaN is not a JSON number"),
    "Infinity": ('{"prompt": "a", "temperature": -Infinity}', "temperature: infinity (any number above 1.8e308)"),
    "1e999": ('{"prompt": "a", "temperature": 1e999}', "temperature: infinity (any number above 1.8e308)"),
    "nested 1e999": ('{"prompt": "a", "logit_bias": {"5": -1e999}}', "logit_bias: infinity"),
    "1e999 in a body": ('{"custom_id": "a", "body": {"prompt": "a", "top_p": 1e999}}', "top_p: infinity"),
    "NaN for a prompt": ('{"prompt": NaN}', "NaN is not a JSON number"),
    "token beyond 64 bits": (f'{{"prompt": [1, {2**64}]}}', "item 2 is a whole number of more than 64 bits"),
    "seed": (f'{{"prompt": "a", "seed": {2**63}}}', "seed: must be a whole number of 64 bits"),
    "nested whole number": (f'{{"prompt": "a", "logit_bias": {{"5": {2**64}}}}}', "logit_bias: has a whole number of"),
    "deep": ('{"prompt": ' + "[" * 100_000, "nested too deeply"),
    "huge number": ('{"prompt": "a", "b": 7, "x": ' + "9" * 5000 + "}", "x: has a whole number of more than 64 bits"),
    "huge number for a prompt": ('{"prompt": ' + "9" * 5000 + "}", "is not JSON"),
    "huge n": ('{"prompt": "a", "n": ' + "9" * 4000 + "}", "n: has a whole number of more than 64 bits"),
    "not UTF-8": (b'{"prompt": "\xff\xfe"}', "is not UTF-8 at byte 13"),
    "binary": (b'{"prompt": "\x00\xff"}', "looks binary"),
    "id as a list": ('{"prompt": "a", "id": []}', "id: must be a string or a number"),
    "empty id": ('{"prompt": "a", "id": ""}', "id: must have 1 to 512"),
    "long id": ('{"prompt": "a", "id": "' + "x" * 600 + '"}', "id: must have 1 to 512"),
    "unknown mode": ('{"prompt": "a", "mode": "guess"}', "mode: 'guess' is not one of"),
    "body no object": ('{"custom_id": "a", "body": "b"}', "body: must be an object"),
    "embeddings": ('{"custom_id": "a", "url": "/v1/embeddings", "body": {"prompt": "a"}}', "not '/v1/embeddings'"),
    "GET": ('{"custom_id": "a", "method": "GET", "body": {"prompt": "a"}}', "method: must be POST"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_bad_line_names_file_line_and_remedy(tmp_path: Path, case: str) -> None:
    line, words = BAD_LINES[case]
    path = write_lines(tmp_path / "in.jsonl", [{"prompt": "good"}] * 6 + [line])
    *before, bad = read(path)
    assert all(isinstance(item, Unit) for item in before)
    assert isinstance(bad, BadLine)
    assert str(bad).startswith(f"{path}:7: ")
    assert words in str(bad)
    assert len(str(bad)) < 400


BAD_FILES: dict[str, tuple[str, bytes | None, str]] = {
    "missing": ("in.jsonl", None, "no such file"),
    "empty": ("in.jsonl", b"", "is empty"),
    "blank": ("in.jsonl", b"\n  \n\r\n", "only blank lines"),
    "UTF-16": ("in.txt", "prompt".encode("utf-16"), "UTF-16"),
    "zip": ("in.jsonl", b"PK\x03\x04....", "zip"),
    "no Parquet": ("in", b"PAR1....", "cannot be read as Parquet"),
    "broken gzip": ("in.gz", gzip.compress(b'{"prompt": "a"}\n' * 99)[:-20], "is truncated"),
    "cut zstd": ("in.zst", zstandard.compress(b'{"prompt": "a"}\n' * 99)[:-5], "is truncated"),
    "broken zstd": ("in.zst", zstandard.compress(b'{"prompt": "a"}\n' * 99)[:-9] + b"garbage!!", "in.zst:"),
    "all bad": ("in.jsonl", b"{x\n{x\n", "2 lines cannot be used"),
}  # fmt: skip


def _look(options: ReadOptions) -> None:
    options.check()
    survey(options, PROFILE).check(strict=False)


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, case: str) -> None:
    name, data, words = BAD_FILES[case]
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    options = ReadOptions((Source(str(path)),), defaults={"max_tokens": 8})
    with pytest.raises(BrimfulError) as caught:
        _look(options)
    assert words in str(caught.value)
    assert caught.value.exit_code == 2
    assert name in str(caught.value) or case == "blank"


SAME_IDS = {
    "stated": (['{"id": "x", "prompt": "a"}', "", '{"id": "x", "prompt": "b"}'], 3, ":3: the id 'x' is already used"),
    "number and string": (['{"id": 5, "prompt": "a"}', '{"id": "5", "prompt": "b"}'], 2, "already used by line 1"),
    "default taken before": (['{"id": "2", "prompt": "a"}', '{"prompt": "b"}'], 2, ":2: has no id"),
    "default taken later": (['{"prompt": "a"}', '{"id": 1, "prompt": "b"}'], 2, ":2: the id '1'"),
    "of a line that is refused": (['{"id": "x", "prompt": 5}', '{"id": "x", "prompt": "b"}', "{}"], 2, "line 1"),
}


@pytest.mark.parametrize("case", SAME_IDS)
def test_a_line_whose_id_is_taken_is_named_and_every_pass_finds_it(tmp_path: Path, case: str) -> None:
    lines, line, words = SAME_IDS[case]
    path = write_lines(tmp_path / "in.jsonl", lines)
    options = ReadOptions((Source(str(path)),), defaults={"max_tokens": 8})
    found = survey(options, PROFILE)
    for duplicates in (None, found.duplicates):
        entries = Reader(options, PROFILE, duplicates=duplicates).entries()
        (bad,) = [entry.item for entry in entries if isinstance(entry.item, BadLine) and entry.item.line == line]
        assert words in str(bad)
    with pytest.raises(InputError):
        survey(options, PROFILE, strict=True).check(strict=True)


BATCH = {"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "max_tokens": 2}}
REFUSED = {
    "url": ({**BATCH, "url": "/v1/embeddings"}, "url: must be one of"),
    "method": ({**BATCH, "method": "GET"}, "method: must be POST, not 'GET'"),
    "no method": ({**BATCH, "method": None}, "method: must be POST, not null"),
    "body": ({**BATCH, "body": "x"}, "body: must be an object with the endpoint's request fields, not a string"),
    "null body": ({**BATCH, "body": None}, "not null"),
    "no body": ({"custom_id": "c", "method": "POST", "url": "/v1/completions"}, "body: missing"),
    "no prompt": ({**BATCH, "body": {"model": "m"}}, "has no prompt"),
    "stream": ({**BATCH, "body": {"prompt": "x", "stream": True}}, "stream: "),
    "max_tokens": ({**BATCH, "body": {"prompt": "x", "max_tokens": 0}}, "max_tokens: must be"),
    "own id": ({"id": "c", "n": 2}, "has no prompt"),
    "null prompt": ({"id": "c", "prompt": None}, "prompt: is null; a request needs a prompt"),
    "null prompt in a body": ({**BATCH, "body": {"prompt": None}}, "prompt: is null"),
    "null messages": ({"id": "c", "messages": None}, "messages: is null"),
    "number": ({"id": "c", "prompt": 5}, "a list of token ids or lists of those, not 5"),
    "object": ({"id": "c", "prompt": {"text": "x"}}, "not an object"),
    "empty": ({"id": "c", "prompt": []}, "not an empty list"),
    "item": ({"id": "c", "prompt": ["a", None]}, "item 2 is null"),
    "text beside tokens": ({"id": "c", "prompt": [1, "secret"]}, "item 2 is a string"),
    "text for messages": ({"id": "c", "messages": "secret"}, "must be a list of at least one message, not a string"),
    "message": ({"id": "c", "messages": ["secret"]}, "messages[0]: must be an object with a role, not a string"),
    "truth": ({"id": "c", "prompt": "x", "n": True}, "n: must be a whole number of at least 1, not true"),
    "model": ({"id": "c", "prompt": "x", "model": 5}, "model: must be a string, not 5"),
    "chat": ({"id": "c", "prompt": [1], "mode": "chat"}, "the chat endpoint takes one string, or messages, not a list"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_line_keeps_its_id_and_says_what_was_found(tmp_path: Path, case: str) -> None:
    line, words = REFUSED[case]
    bad = one(tmp_path, line)
    assert isinstance(bad, BadLine)
    assert (bad.id, words in bad.message) == ("c", True), bad.message
    assert "secret" not in bad.message


def test_a_directory_and_a_file_named_twice_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a directory"):
        read(tmp_path)
    path = write_lines(tmp_path / "in.txt", ["a"])
    with pytest.raises(UsageError, match="named twice"):
        read(path, path)


def test_an_overlong_line_is_bad_and_the_next_one_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("files.lines", "reader"):
        monkeypatch.setattr(f"brimful.run.input.{module}.MAX_ROW", 1 << 20)
    path = write_lines(tmp_path / "in.txt", ["x" * (3 << 20), "next"])
    bad, unit = read(path)
    assert isinstance(bad, BadLine)
    assert "is longer than 1 MiB" in bad.message
    assert isinstance(unit, Unit)
    assert (unit.line, unit.request.prompts) == (2, ["next"])


def test_strict_ends_at_the_first_fault(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "in.jsonl", ['{"prompt": "a"}', "{", "{"])
    options = ReadOptions((Source(str(path)),), defaults={"max_tokens": 8})
    with pytest.raises(InputError, match=r"in.jsonl:2: is not JSON on its own"):
        survey(options, PROFILE, strict=True).check(strict=True)
    found = survey(options, PROFILE)
    found.check(strict=False)
    assert (found.requests, found.bad, found.good) == (3, 2, 1)


@pytest.mark.parametrize("more", [{}, {"mode": Mode.CHAT, "system": "be brief"}], ids=["completions", "chats"])
def test_lines_that_differ_little_are_read_as_if_each_were_alone(tmp_path: Path, more: dict[str, Any]) -> None:
    rest: list[dict[str, Any]] = [
        {}, {"echo": 1}, {"echo": True}, {"echo": 1.0}, {"temperature": 0}, {"temperature": 0.0}, {"n": 2}, {"n": 0},
        {"max_tokens": 3, "n": 2}, {"n": 2, "max_tokens": 3}, {"mode": "chat"}, {"mode": "none"}, {"stop": ["x"]},
        {"user": "u" * 300}, {"user": None}, {"workload": "interactive"}, {"system": "another"}, {"messages": []},
    ]  # fmt: skip
    lines = [
        {"id": f"{text}{place}", "prompt": text, **each}
        for text in ("a", "\u2028", "")
        for place, each in enumerate(rest)
    ]
    lines.insert(5, {"id": "several", "prompt": ["a", "b"], "n": 2})

    def shown(item: Unit | BadLine) -> str:
        if isinstance(item, BadLine):
            return item.message
        request = item.request
        return json.dumps([request.fields, request.id, request.mode, request.workload])

    together = [shown(item) for item in read(write_lines(tmp_path / "all.jsonl", lines), **more)]
    assert together == [shown(one(tmp_path, line, **more)) for line in lines]


def test_a_limit_counts_requests_not_lines(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "in.txt", ["a", "", "b", "c"])
    assert [item.line for item in read(path, limit=2)] == [1, 3]


def test_many_lines_are_read_in_constant_memory(tmp_path: Path) -> None:
    count = 12_000
    with (tmp_path / "in.jsonl").open("w") as file:
        for line in range(count):
            file.write(f'{{"id": "p{line}", "prompt": "a prompt that is of some length, number {line}"}}\n')
    options = ReadOptions((Source(str(tmp_path / "in.jsonl")),), defaults={"max_tokens": 8})
    tracemalloc.start()
    try:
        seen = sum(isinstance(entry.item, Unit) for entry in Reader(options, PROFILE).entries())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seen == count
    assert peak < 8 * 1024 * 1024  # all requests at once would be three times that
