"""``--format openai-batch``: the output and error files of OpenAI's Batch API, made from the ledger.

A line per request, in the input's order: ``{"id", "custom_id", "response": {"status_code", "request_id", "body"},
"error"}``, the body a Completion or a ChatCompletion as OpenAI's types read it. A request of which rollouts are missing
is left out until they are there.
Source: platform.openai.com, Batch API, "Retrieve the results".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from brimful.run.output.jsonl import scan
from brimful.run.output.records import dump_line
from brimful.runtime.atomic import atomic_write


def write_openai_batch(records: Iterable[tuple[bytes, dict[str, Any]]], path: Path) -> None:
    """``records`` by line, prompt and choice. Raises FleetError."""
    with atomic_write(path) as file:
        file.writelines(_response_lines(record for _, record in records))


def write_openai_errors(ledger: Path, path: Path) -> None:
    """The error file, or none where nothing failed. Raises FleetError."""
    if not ledger.exists():
        path.unlink(missing_ok=True)
        return
    with atomic_write(path) as file:
        file.writelines(dump_line(_error(record)) for record, _ in scan(ledger))


def _response_lines(records: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    for _, of_line in groupby(records, key=lambda record: record["line"]):
        group = list(of_line)
        of = group[0].get("of")
        if of is None or len(group) >= of:
            yield dump_line(_response(group))


def _response(group: list[dict[str, Any]]) -> dict[str, Any]:
    first = group[0]
    return {
        "id": f"batch_req_{first['line']:012d}",
        "custom_id": first["id"],
        "response": {"status_code": 200, "request_id": first["request_id"], "body": _body(group)},
        "error": None,
    }


def _body(group: list[dict[str, Any]]) -> dict[str, Any]:
    first = group[0]
    chat = "message" in first
    usage = {
        name: sum((record["usage"] or {}).get(name, 0) for record in group)
        for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    }
    return {
        "id": ("chatcmpl-" if chat else "cmpl-") + str(first["request_id"]),
        "object": "chat.completion" if chat else "text_completion",
        "created": int(first["ended_at"] or 0),
        "model": first["model"],
        "choices": [_choice(record, index, chat) for index, record in enumerate(group)],
        "usage": usage,
    }


def _choice(record: dict[str, Any], index: int, chat: bool) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": index, "finish_reason": record["finish_reason"] or "stop"}
    choice["logprobs"] = record.get("logprobs")
    if chat:
        message = record["message"]
        content = record["text"] if record["text"] or not message.get("tool_calls") else None
        choice["message"] = {"role": "assistant", **message, "content": content}
    else:
        choice["text"] = record["text"]
    return choice


def _error(record: dict[str, Any]) -> dict[str, Any]:
    error = {"code": record["cause"], "message": record["message"], "param": None, "type": record["cause"]}
    status = record.get("status")
    response = None
    if status:
        response = {"status_code": status, "request_id": record.get("request_id"), "body": {"error": error}}
    return {
        "id": f"batch_req_{record['line']:012d}",
        "custom_id": record["id"],
        "response": response,
        "error": {"code": record["cause"], "message": record["message"]},
    }
