"""What a hook of ``brimful run --hook`` gets, and how it asks for another sample.

A hook is a function ``hook(line, completion)``, plain or ``async``. It returns a mapping of columns for the output, or
None, or it raises :class:`Again`. Imports nothing of brimful, so that a hook imports nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class Again(Exception):
    """Raise it to reject the completion: the choice is sampled again, up to ``--tries`` times. Its text says why."""


@dataclass(frozen=True, slots=True)
class Line:
    """The input line that a completion is of."""

    number: int
    """Its place in the whole input; 1 is the first."""
    id: Any
    """As the line gives it; the number as a string where it gives none."""
    prompt: Any
    """A string, a ``list[int]`` of tokens, or a chat's messages."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The line's fields that are not sent to the provider. A copy: changes have no effect."""
    request: Mapping[str, Any] = field(default_factory=dict)
    """The line's fields that are sent. A copy."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled choice of a prompt."""

    text: str
    """Of a chat: the content of the message."""
    finish_reason: str | None
    choice_index: int
    prompt_index: int
    """The prompt's place in its line; 0 unless the line has several prompts."""
    tries: int
    """1 for the first sample of this choice, 2 for the second one, …"""
    model: str
    """As the provider names it."""
    choice: Mapping[str, Any] = field(default_factory=dict)
    """The provider's own choice object, with ``logprobs`` if they were asked for."""
    message: Mapping[str, Any] | None = None
    """The chat message; None for a completion."""
    value: Any = None
    """With ``--schema``: the JSON value in the text; with a pydantic model, its instance."""
