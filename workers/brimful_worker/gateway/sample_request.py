"""Parses a request body as the provider does: a checked :class:`SampleRequest`, or a 400 or 404."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from brimful_worker.gateway.model.text import count_tokens, prompt_digest
from brimful_worker.gateway.options import GatewayOptions
from brimful_worker.gateway.responses import Refusal

_DEFAULT_MAX_TOKENS = 16  # our choice


class Tool(NamedTuple):
    """The function that the answer calls, with the JSON Schema of its arguments."""

    name: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A valid request."""

    chat: bool
    model: str
    prompts: list[Any]
    """Strings, lists of token ids, or (chat) one list of messages."""
    digests: list[bytes]
    n: int
    max_tokens: int
    seed: int | None
    greedy: bool
    stop: tuple[str, ...]
    prompt_tokens: int
    """Counts each prompt once, whatever n is. ("Sample many rollouts")"""
    best_of: int
    """Candidates generated per prompt, at least n."""
    echo: bool
    logprobs: int | None
    """Alternatives listed for each token; None = no log probabilities."""
    tool: Tool | None
    schema: dict[str, Any] | None
    """The JSON Schema of ``response_format``."""
    stream: bool
    include_usage: bool
    """Whether the stream ends with a chunk of usage."""

    @property
    def choices(self) -> int:
        return len(self.prompts) * self.n

    @property
    def hold(self) -> int:
        """Tokens held while it runs."""
        return self.prompt_tokens + len(self.prompts) * self.best_of * self.max_tokens


def read_json(body: bytes) -> dict[str, Any]:
    """The body's JSON object. Raises Refusal (400)."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        try:
            fields = json.loads(body)  # reads lone surrogates, which orjson refuses
        except (ValueError, RecursionError):
            raise _bad("We could not parse the JSON body of your request.", None, "invalid_json") from None
    if not isinstance(fields, dict):
        raise _bad("The body of a request must be a JSON object.", None, "invalid_json")
    return fields


def parse_request(fields: Mapping[str, Any], options: GatewayOptions, *, chat: bool) -> SampleRequest:
    """The request that a body's fields describe. Raises Refusal (400, 404)."""
    model = fields.get("model")
    if not isinstance(model, str) or not model:
        raise _bad("you must provide a model parameter", "model", "missing_model" if model is None else "invalid_type")
    if options.models and model not in options.models:
        raise Refusal(404, "model_not_found", f"The model '{model}' does not exist.", param="model")
    prompts = [_messages(fields.get("messages"))] if chat else _prompts(fields.get("prompt"))
    n = _number(fields, "n", 1) or 1
    best_of = n if chat else _number(fields, "best_of", n) or n
    max_tokens = _max_tokens(fields, options, chat=chat, choices=len(prompts) * n)
    if options.max_request_tokens is not None and len(prompts) * best_of * max_tokens > options.max_request_tokens:
        size = f"{len(prompts)} x {best_of} x {max_tokens}"
        message = f"prompt_count x n x max_tokens must be at most {options.max_request_tokens}, but is {size}"
        raise _bad(message, "max_tokens", "request_too_large")
    _number(fields, "top_p", 0, 1, whole=False)
    stream = _flag(fields, "stream")
    return SampleRequest(
        chat=chat,
        model=model,
        prompts=prompts,
        digests=[prompt_digest(prompt) for prompt in prompts],
        n=n,
        max_tokens=max_tokens,
        seed=_number(fields, "seed", -math.inf),
        greedy=_number(fields, "temperature", 0, 2, whole=False) == 0,
        stop=_stop(fields.get("stop")),
        prompt_tokens=sum(map(count_tokens, prompts)),
        best_of=best_of,
        echo=not chat and _flag(fields, "echo"),
        logprobs=_logprobs(fields, chat=chat),
        tool=_tool(fields, prompts[0]) if chat else None,
        schema=_schema(fields.get("response_format")) if chat else None,
        stream=stream,
        include_usage=_include_usage(fields.get("stream_options"), stream=stream),
    )


def _bad(message: str, param: str | None, code: str) -> Refusal:
    return Refusal(400, code, message, param=param)


def _max_tokens(fields: Mapping[str, Any], options: GatewayOptions, *, chat: bool, choices: int) -> int:
    name = "max_completion_tokens" if chat and fields.get("max_completion_tokens") is not None else "max_tokens"
    if fields.get(name) is None and choices > 1 and options.max_tokens_required:
        raise _bad("max_tokens must be set explicitly for several prompts or n > 1", "max_tokens", "missing_max_tokens")
    return _number(fields, name, 1) or _DEFAULT_MAX_TOKENS


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise _bad(f"{name} must be true or false", name, "invalid_type")
    return bool(value)


def _logprobs(fields: Mapping[str, Any], *, chat: bool) -> int | None:
    if not chat:
        top: int | None = _number(fields, "logprobs", 0, 5)
        return top
    asked, top = _flag(fields, "logprobs"), _number(fields, "top_logprobs", 0, 20)
    if top is not None and not asked:
        raise _bad("top_logprobs needs logprobs to be true", "top_logprobs", "invalid_value")
    return (top or 0) if asked else None


def _tool(fields: Mapping[str, Any], messages: list[Any]) -> Tool | None:
    """The tool that the answer calls: the chosen or the first one, but none after a tool's result."""
    tools, choice = fields.get("tools"), fields.get("tool_choice")
    if tools is None:
        return None
    if not isinstance(tools, list) or not tools:
        raise _bad("tools must be a list that is not empty", "tools", "invalid_type")
    known = {}
    for position, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise _bad("a tool must have a function with a name", f"tools[{position}]", "invalid_type")
        known[function["name"]] = Tool(function["name"], function.get("parameters") or {"type": "object"})
    if choice == "none" or (choice in (None, "auto") and messages[-1]["role"] == "tool"):
        return None
    if isinstance(choice, dict):
        name = choice["function"].get("name") if isinstance(choice.get("function"), dict) else None
        if name not in known:
            raise _bad(f"tool_choice names {name!r}, which is not among the tools", "tool_choice", "invalid_value")
        return known[name]
    return next(iter(known.values()))


def _schema(response_format: Any) -> dict[str, Any] | None:
    if response_format is None or response_format == {"type": "text"}:
        return None
    kind = response_format.get("type") if isinstance(response_format, dict) else None
    if kind == "json_object":
        return {"type": "object", "properties": {"answer": {"type": "string"}, "number": {"type": "integer"}}}
    described = response_format.get("json_schema") if kind == "json_schema" else None
    if not isinstance(described, dict) or not isinstance(described.get("schema"), dict):
        raise _bad(
            "response_format must have the type text, json_object or json_schema with a schema",
            "response_format",
            "invalid_value",
        )
    schema: dict[str, Any] = described["schema"]
    return schema


def _include_usage(stream_options: Any, *, stream: bool) -> bool:
    if stream_options is None:
        return False
    if not stream or not isinstance(stream_options, dict):
        raise _bad("stream_options must be an object, and needs stream to be true", "stream_options", "invalid_value")
    return stream_options.get("include_usage") is True


def _number(fields: Mapping[str, Any], name: str, low: float, high: float = math.inf, *, whole: bool = True) -> Any:
    value = fields.get(name)
    if value is None:
        return None
    if type(value) is not int and (whole or type(value) is not float):
        raise _bad(f"{name} must be {'an integer' if whole else 'a number'}", name, "invalid_type")
    if not low <= value <= high:
        limits = f"at least {low}" if high == math.inf else f"between {low} and {high}"
        raise _bad(f"{name} must be {limits}", name, "invalid_value")
    return value


def _stop(value: Any) -> tuple[str, ...]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise _bad("stop must be a string or a list of strings", "stop", "invalid_type")
    return tuple(filter(None, stops))


def _prompts(prompt: Any) -> list[Any]:
    if prompt is None:
        raise _bad("you must provide a prompt", "prompt", "missing_prompt")
    if isinstance(prompt, str) or _is_tokens(prompt):
        return [prompt]
    if (
        isinstance(prompt, list)
        and prompt
        and (all(type(item) is str for item in prompt) or all(map(_is_tokens, prompt)))
    ):
        return prompt
    message = "prompt must be a string, a list of strings, a list of token ids or a list of those, and not empty"
    raise _bad(message, "prompt", "invalid_type")


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int and item >= 0 for item in value)


def _messages(messages: Any) -> list[Any]:
    if messages is None:
        raise _bad("you must provide messages", "messages", "missing_messages")
    if not isinstance(messages, list) or not messages:
        raise _bad("messages must be a list that is not empty", "messages", "invalid_type")
    for position, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _bad("a message must be an object with a role", f"messages[{position}]", "invalid_type")
        if not isinstance(message.get("content"), str | list | None):
            raise _bad("content must be a string or a list of parts", f"messages[{position}].content", "invalid_type")
    return messages
