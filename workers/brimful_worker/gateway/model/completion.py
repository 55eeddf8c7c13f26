"""The answer to a request, in OpenAI's form: choices with their texts, tool calls and log probabilities, and usage."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any, NamedTuple

from brimful_worker.gateway.model.logprobs import chat_logprobs, completion_logprobs
from brimful_worker.gateway.model.structured import sample_json
from brimful_worker.gateway.model.text import SampledText, count_tokens, sample_text
from brimful_worker.gateway.options import GatewayOptions
from brimful_worker.gateway.sample_request import SampleRequest

_REASONING = 1 << 20
"""Added to the choice's number for its reasoning, so that it differs from the answer."""


class Completion(NamedTuple):
    """A whole answer, and the tokens that it really cost, whatever its ``usage`` says."""

    body: dict[str, Any]
    prompt_tokens: int
    completion_tokens: int


class _Choice(NamedTuple):
    body: dict[str, Any]
    tokens: int
    reasoning_tokens: int


def complete(request: SampleRequest, options: GatewayOptions) -> Completion:
    """All prompts x n choices, choice i of prompt p at index p*n + i, and the usage. ("Sample many rollouts")"""
    n = 1 if options.ignore_n else request.n
    choices = [
        _choice(request, options, prompt, choice) for prompt in range(len(request.prompts)) for choice in range(n)
    ]
    for index, choice in enumerate(choices):
        choice.body["index"] = index
    # best_of generates all candidates and returns n of them.
    tokens = sum(choice.tokens for choice in choices) * request.best_of // request.n
    body: dict[str, Any] = {
        "id": ("chatcmpl-" if request.chat else "cmpl-") + uuid.uuid4().hex,
        "object": "chat.completion" if request.chat else "text_completion",
        "created": int(time.time()),
        "model": request.model,
        "choices": [choice.body for choice in choices],
    }
    usage = _usage(request.prompt_tokens, tokens, sum(choice.reasoning_tokens for choice in choices))
    if options.usage == "zero":
        usage = _usage(0, 0, 0)
    elif options.usage == "one_choice":  # llama.cpp's server counts one of a list of prompts
        usage = _usage(count_tokens(request.prompts[0]), choices[0].tokens, choices[0].reasoning_tokens)
    if options.usage != "missing":
        body["usage"] = usage
    return Completion(body, request.prompt_tokens, tokens)


def _usage(prompt: int, completion: int, reasoning: int) -> dict[str, Any]:
    usage: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if reasoning:
        usage["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return usage


def _choice(request: SampleRequest, options: GatewayOptions, prompt: int, choice: int) -> _Choice:
    reasoning = None
    if request.chat and options.reasoning != "none":
        reasoning = _text(request, options, prompt, choice + _REASONING, max(1, request.max_tokens // 2))
    left = request.max_tokens - (reasoning.tokens if reasoning else 0)
    if request.tool is not None:
        arguments = json.dumps(sample_json(request.tool.parameters, request.digests[prompt] + bytes([choice & 255])))
        answer = SampledText(arguments, count_tokens(arguments), "tool_calls")
    elif left == 0:
        answer = SampledText("", 0, "length")
    elif request.schema is not None:
        text = json.dumps(sample_json(request.schema, request.digests[prompt] + bytes([choice & 255])))
        answer = SampledText(text, count_tokens(text), "stop")
        if answer.tokens > left:
            answer = SampledText(text[: left * 4], left, "length")
    else:
        answer = _text(request, options, prompt, choice, left)
    body: dict[str, Any] = {"index": 0}
    if request.chat:
        body["message"] = _message(request, options, answer, reasoning)
    else:
        body["text"] = (_plain(request.prompts[prompt]) if request.echo else "") + answer.text
    body["logprobs"] = _logprobs(request, answer.text)
    body["finish_reason"] = answer.finish_reason
    spent = reasoning.tokens if reasoning else 0
    return _Choice(body, answer.tokens + spent, spent)


def _message(
    request: SampleRequest, options: GatewayOptions, answer: SampledText, reasoning: SampledText | None
) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text if answer.tokens else None}
    if reasoning is not None:
        message[options.reasoning] = reasoning.text
    if request.tool is not None:
        call = {"name": request.tool.name, "arguments": answer.text}
        message["content"] = None
        message["tool_calls"] = [{"id": "call_" + uuid.uuid4().hex[:24], "type": "function", "function": call}]
    return message


def _text(request: SampleRequest, options: GatewayOptions, prompt: int, choice: int, max_tokens: int) -> SampledText:
    sampled = sample_text(
        request.digests[prompt],
        choice,
        max_tokens=max_tokens,
        seed=request.seed,
        model=request.model,
        greedy=request.greedy,
        odd=options.text == "unicode",
    )
    for stop in request.stop:
        if (end := sampled.text.find(stop)) >= 0:
            sampled = SampledText(sampled.text[:end], len(sampled.text[:end].split()), "stop")
    return sampled


def _logprobs(request: SampleRequest, text: str) -> dict[str, Any] | None:
    if request.logprobs is None:
        return None
    return chat_logprobs(text, request.logprobs) if request.chat else completion_logprobs(text, request.logprobs)


def _plain(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else "".join(f" token{number}" for number in prompt)
