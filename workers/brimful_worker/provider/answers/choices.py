"""Checks the choices of a completion, and adds up the usage of several. Pure functions.

Choice ``c`` of prompt ``p`` has the index ``p * n + c`` (ACS, "Sample many rollouts").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from brimful.words.counted import counted


class BadChoices(ValueError):
    """The choices have no distinct indexes, or there are more than were requested; ``str()`` says why."""


class NIgnored(BadChoices):
    """Each of several prompts has one choice where ``n`` asked for more: whose they are is not certain."""


@dataclass(slots=True)
class CheckedChoices:
    choices: list[dict[str, Any]]
    """The choices with a text, sorted by ``index``."""
    missing: tuple[int, ...]
    """The indexes without one."""


def check_choices(completion: Mapping[str, Any], expected: int, *, prompts: int = 1) -> CheckedChoices:
    """The usable choices of an answer to ``prompts`` prompts and ``expected`` (= prompts x n) choices.

    Raises BadChoices, and NIgnored.
    """
    raw = completion.get("choices")
    if raw is None:
        raw = []
    if not isinstance(raw, list):
        raise BadChoices(f"choices is {type(raw).__name__}, not a list")
    if len(raw) > expected:
        raise BadChoices(f"{counted(len(raw), 'choice')} returned, {expected} requested")
    if len(raw) == prompts < expected and prompts > 1:
        raise NIgnored(f"{prompts} choices for {prompts} prompts, {expected} requested: the server ignores n")
    found: dict[int, dict[str, Any]] = {}
    for position, choice in enumerate(raw):
        if not isinstance(choice, dict):
            continue
        # Without an index, the position in the list counts where it is unambiguous.
        position_counts = len(raw) == expected or prompts == 1
        index = _index(choice, position if position_counts else None)
        if index is None:
            raise BadChoices(f"choice {position} of {len(raw)} has no index")
        if not 0 <= index < expected:
            raise BadChoices(f"a choice has the index {index}, but only {expected} were requested")
        if index in found:
            raise BadChoices(f"two choices have the index {index}")
        if has_text(choice):
            found[index] = choice if choice.get("index") is index else {**choice, "index": index}
    if expected == 1:
        return CheckedChoices([*found.values()], () if found else (0,))
    missing = tuple(index for index in range(expected) if index not in found)
    return CheckedChoices([found[index] for index in sorted(found)], missing)


def _index(choice: Mapping[str, Any], default: int | None) -> int | None:
    raw = choice.get("index")
    if type(raw) is int:
        return raw
    if isinstance(raw, float) and raw.is_integer():
        return int(raw)
    if isinstance(raw, str) and raw.isdecimal():
        return int(raw[:10])  # Python refuses to read thousands of digits
    return default


_IN_PLACE_OF_CONTENT = ("tool_calls", "function_call", "refusal", "audio", "reasoning", "reasoning_content")
"""Fields of a chat message that make an answer without ``content``. vLLM calls its reasoning ``reasoning``, and called
it ``reasoning_content`` before."""


def has_text(choice: Mapping[str, Any]) -> bool:
    """Whether the choice holds a continuation; an empty string is one.

    A null text counts only if the choice explains it: the content filter removed it, or a chat model answered with a
    tool call, a refusal, or reasoning that used up its tokens.
    """
    message = choice.get("message")
    if isinstance(message, dict):
        if isinstance(message.get("content"), (str, list)):
            return True
        if any(message.get(name) for name in _IN_PLACE_OF_CONTENT):
            return True
        return choice.get("finish_reason") in ("content_filter", "length")
    return isinstance(choice.get("text"), str) or choice.get("finish_reason") == "content_filter"
