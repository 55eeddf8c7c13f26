"""OpenAI's batch format, from records; and which file OUT is made into."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from brimful.run.output.convert import convert
from brimful.run.output.openai_batch import write_openai_batch, write_openai_errors
from brimful.run.output.paths import OutputFormat, RunPaths
from brimful.run.output.records import dump_line
from support.runs import records

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def record(line: int, choice: int = 0, **more: Any) -> dict[str, Any]:
    fields = {
        "line": line, "id": f"c{line}", "prompt_index": 0, "choice_index": choice, "text": f"t{choice}", "model": "m",
        "finish_reason": None, "request_id": f"q{line}", "ended_at": 7.9, "usage": USAGE,
    }  # fmt: skip
    return fields | more


def written(tmp_path: Path, *of: dict[str, Any]) -> list[dict[str, Any]]:
    write_openai_batch(of, tmp_path / "out.jsonl")
    return records(tmp_path / "out.jsonl")


def test_a_line_is_one_completion(tmp_path: Path) -> None:
    [found] = written(tmp_path, record(1, of=2), record(1, 1, of=2, finish_reason="length", logprobs={"tokens": []}))
    body = found["response"].pop("body")
    assert found == {
        "id": "batch_req_000000000001",
        "custom_id": "c1",
        "response": {"status_code": 200, "request_id": "q1"},
        "error": None,
    }
    assert body == {
        "id": "cmpl-q1",
        "object": "text_completion",
        "created": 7,
        "model": "m",
        "choices": [
            {"index": 0, "text": "t0", "finish_reason": "stop", "logprobs": None},
            {"index": 1, "text": "t1", "finish_reason": "length", "logprobs": {"tokens": []}},
        ],
        "usage": {"prompt_tokens": 6, "completion_tokens": 4, "total_tokens": 10},
    }


@pytest.mark.parametrize(
    ("text", "message", "content"),
    [("hi", {}, "hi"), ("", {}, ""), ("", {"tool_calls": [1]}, None), ("hi", {"tool_calls": [1]}, "hi")],
)
def test_a_chat_has_messages(tmp_path: Path, text: str, message: dict[str, Any], content: str | None) -> None:
    [found] = written(tmp_path, record(1, text=text, message=message, ended_at=None, usage={}))
    body = found["response"]["body"]
    assert (body["id"], body["object"], body["created"]) == ("chatcmpl-q1", "chat.completion", 0)
    assert body["usage"] == dict.fromkeys(USAGE, 0)
    [choice] = body["choices"]
    assert choice["message"] == {"role": "assistant", **message, "content": content}
    assert "text" not in choice


def test_a_line_is_left_out_until_all_its_rollouts_are_there(tmp_path: Path) -> None:
    found = written(tmp_path, record(1, of=2), record(2, of=1), record(3))
    assert [line["custom_id"] for line in found] == ["c2", "c3"]


def test_columns_combinations_and_hooks_stand_beside_it(tmp_path: Path) -> None:
    one, two, three = written(
        tmp_path,
        record(1, input={"answer": 4}, of=2, hook={"score": 1}),
        record(1, 1, input={"answer": 4}, of=2),
        record(2, sweep_index=0, sweep={"n": 1}),
        record(2, sweep_index=1, sweep={"n": 2}),
    )
    assert one["brimful"] == {"input": {"answer": 4}, "hook": [{"score": 1}, None]}
    assert [(line["id"], line["brimful"]) for line in (two, three)] == [
        ("batch_req_000000000002_0000", {"sweep": {"n": 1}}),
        ("batch_req_000000000002_0001", {"sweep": {"n": 2}}),
    ]


def test_failures_are_an_error_file(tmp_path: Path) -> None:
    failures, out = tmp_path / "failures.jsonl", tmp_path / "errors.jsonl"
    failed = {"line": 1, "id": "c1", "cause": "bad_request", "message": "no"}
    both = [failed | {"status": 400, "request_id": "q"}, failed | {"line": 2}]
    failures.write_bytes(b"".join(map(dump_line, both)))
    write_openai_errors(failures, out)
    one, two = records(out)
    error = {"code": "bad_request", "message": "no"}
    assert (one["error"], two["error"], two["response"]) == (error, error, None)
    body = {"error": error | {"param": None, "type": "bad_request"}}
    assert one["response"] == {"status_code": 400, "request_id": "q", "body": body}
    failures.unlink()
    for _ in range(2):
        write_openai_errors(failures, out)
        assert not out.exists()


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("name", ["out.jsonl", "in order", "out.csv", "out.parquet", "batch"])
def test_out_is_made_from_the_rollouts_file(tmp_path: Path, name: str, there: bool) -> None:
    form = OutputFormat.OPENAI_BATCH if name == "batch" else OutputFormat.ROLLOUTS
    paths = RunPaths(tmp_path / (name if name.startswith("out") else "out.jsonl"), form)
    unordered = b"".join(dump_line(record(line)) for line in (2, 1))
    if there:
        paths.rollouts.write_bytes(unordered)
        paths.failures.write_bytes(dump_line({"line": 3, "id": "c3", "cause": "timeout", "message": "late"}))
    convert(paths, input_order=name == "in order")
    if not there:
        assert not paths.output.exists()
    elif name == "out.jsonl":
        assert paths.output.read_bytes() == unordered
    elif name == "in order":
        assert [found["line"] for found in records(paths.output)] == [1, 2]
    elif name == "batch":
        assert [found["custom_id"] for found in records(paths.output)] == ["c1", "c2"]
        assert [found["error"]["code"] for found in records(paths.errors)] == ["timeout"]
    elif name == "out.csv":
        assert [row.split(",")[0] for row in paths.output.read_text().splitlines()][1:] in (["1", "2"], ["c1", "c2"])
    else:
        assert paths.output.read_bytes()[:4] == b"PAR1"


def test_a_file_that_is_in_order_already_is_left_alone(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "out.jsonl")
    paths.output.write_text("".join(json.dumps(record(line)) + "\n" for line in (1, 2)))
    before = paths.output.stat().st_ino
    convert(paths, input_order=True)
    assert paths.output.stat().st_ino == before
