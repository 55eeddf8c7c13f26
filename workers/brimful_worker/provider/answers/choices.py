"""The choices of a completion: checked one by one, and put together from several answers. Pure.

Choice ``c`` of prompt ``p`` has the index ``p * n + c`` (ACS, "Sample many rollouts").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class BadChoices(ValueError):
    """The answer's choices cannot be told apart, or are more than were asked for; ``str()`` says why."""


@dataclass(slots=True)
class Checked:
    choices: list[dict[str, Any]]
    """Those that hold a text, in the order of their index."""
    missing: tuple[int, ...]


def check(completion: Mapping[str, Any], expected: int, *, prompts: int = 1) -> Checked:
    """The usable choices of an answer to ``prompts`` prompts with ``expected`` choices in all. Raises BadChoices."""
    raw = completion.get("choices")
    if raw is None:
        raw = []
    if not isinstance(raw, list):
        raise BadChoices(f"choices is {type(raw).__name__}, not a list")
    if len(raw) > expected:
        raise BadChoices(f"{len(raw)} choices came, {expected} were asked for")
    found: dict[int, dict[str, Any]] = {}
    for place, choice in enumerate(raw):
        if not isinstance(choice, dict):
            continue
        if (index := _index(choice, place, whole=len(raw) == expected or prompts == 1)) is None:
            raise BadChoices(f"choice {place} of {len(raw)} has no index")
        if not 0 <= index < expected:
            raise BadChoices(f"a choice has the index {index}, {expected} were asked for")
        if index in found:
            raise BadChoices(f"two choices have the index {index}")
        if has_text(choice):
            found[index] = choice if choice.get("index") is index else {**choice, "index": index}
    if len(found) == expected:
        return Checked([found[index] for index in range(expected)], ())
    return Checked(
        [found[index] for index in sorted(found)],
        tuple(index for index in range(expected) if index not in found),
    )


def _index(choice: Mapping[str, Any], place: int, *, whole: bool) -> int | None:
    """The choice's own index; its place in the list where it names none and that can only be meant."""
    raw = choice.get("index")
    if type(raw) is int:
        return raw
    if isinstance(raw, float) and raw.is_integer():
        return int(raw)
    if isinstance(raw, str) and raw.isdecimal():
        return int(raw)
    return place if whole else None


def has_text(choice: Mapping[str, Any]) -> bool:
    """Whether the choice holds a continuation, be it empty.

    A null text is none, save where the choice says why: the filter took it, or a chat model answered with a tool
    call, a refusal, or thoughts that used up its tokens.
    """
    message = choice.get("message")
    if isinstance(message, dict):
        if isinstance(message.get("content"), (str, list)):
            return True
        if any(message.get(name) for name in ("tool_calls", "function_call", "refusal", "audio", "reasoning_content")):
            return True
        return choice.get("finish_reason") in ("content_filter", "length")
    if isinstance(choice.get("text"), str):
        return True
    return choice.get("finish_reason") == "content_filter"


def merge_usage(*usages: Any) -> dict[str, Any] | None:
    """The sum of several ``usage`` objects, nested counts too; None where none was told."""
    told = [usage for usage in usages if isinstance(usage, dict)]
    if len(told) < 2:
        return told[0] if told else None
    total: dict[str, Any] = {}
    for usage in told:
        for name, value in usage.items():
            if isinstance(value, dict) or isinstance(total.get(name), dict):
                total[name] = merge_usage(total.get(name), value)
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                before = total.get(name)
                total[name] = value + (before if isinstance(before, (int, float)) else 0)
            elif total.get(name) is None:
                total[name] = value
    return total
