"""``--format openai-batch``: the output and error files of OpenAI's Batch API.

One line per request, in the input's order: ``{"id", "custom_id", "response": {"status_code", "request_id", "body"},
"error"}``, and ``"brimful"`` where the line has columns (``input``) or a hook has added some (``hook``, a list with one
object, or null, for each choice). The body is a Completion or a ChatCompletion. A request is left out until all its
rollouts are there.
Source: platform.openai.com, Batch API, "Retrieve the results".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from brimful.packing.usage import merge_usage
from brimful.run.output.jsonl import scan
from brimful.run.output.records import dump_line
from brimful.runtime.atomic import atomic_write


def write_openai_batch(records: Iterable[dict[str, Any]], path: Path) -> None:
    """``records`` come by line, combination, prompt and choice. Raises FleetError."""
    with atomic_write(path) as file:
        for _, of_line in groupby(records, key=lambda record: (record["line"], record.get("sweep_index"))):
            first, *rest = of_line
            group = [first, *({**record, "input": None} for record in rest)]  # its columns are held once
            of = group[0].get("of")
            if of is None or len(group) >= of:
                file.write(dump_line(_response(group)))


def write_openai_errors(failures: Path, path: Path) -> None:
    """Write the error file, or remove it when nothing failed. Raises FleetError."""
    if not failures.exists():
        path.unlink(missing_ok=True)
        return
    with atomic_write(path) as file:
        file.writelines(dump_line(_error(record)) for record, _ in scan(failures))


def _response(group: list[dict[str, Any]]) -> dict[str, Any]:
    first = group[0]
    chat = "message" in first
    none = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    usage = merge_usage(none, *(record["usage"] for record in group))
    body = {
        "id": ("chatcmpl-" if chat else "cmpl-") + str(first["request_id"]),
        "object": "chat.completion" if chat else "text_completion",
        "created": int(first["ended_at"] or 0),
        "model": first["model"],
        "choices": [_choice(record, index, chat) for index, record in enumerate(group)],
        "usage": usage,
    }
    hooks = [record.get("hook") for record in group]
    return _line(first, {"status_code": 200, "request_id": first["request_id"], "body": body}, None, hooks)


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
    cause, message = record["cause"], record["message"]
    response = None
    if status := record.get("status"):
        body = {"error": {"code": cause, "message": message, "param": None, "type": cause}}
        response = {"status_code": status, "request_id": record.get("request_id"), "body": body}
    return _line(record, response, {"code": cause, "message": message})


def _line(
    record: dict[str, Any], response: dict[str, Any] | None, error: dict[str, Any] | None, hooks: Sequence[Any] = ()
) -> dict[str, Any]:
    beside = {name: record[name] for name in ("input", "sweep") if record.get(name)}
    index = record.get("sweep_index")
    if any(hooks):
        beside["hook"] = hooks
    return {
        "id": f"batch_req_{record['line']:012d}" + (f"_{index:04d}" if index is not None else ""),
        "custom_id": record["id"],
        "response": response,
        "error": error,
        **({"brimful": beside} if beside else {}),
    }
