"""Finds the JSON in a sampled text: the whole text, or the one fenced block in it. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

_FENCED = re.compile(r"^[ \t]*```[ \t]*(\w*)[ \t]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)


class NotJson(ValueError):
    """The text holds no JSON value, or it is not clear which one is meant. Its message is the reason."""


def find_json(text: str) -> tuple[str, Any]:
    """The JSON and its value: the whole text but white space around it, or what is in its only block fenced by
    ```` ``` ```` or ```` ```json ````, with any words around that.

    NaN and infinities are not JSON. Raises NotJson.
    """
    blocks = [block for kind, block in _FENCED.findall(text) if kind.lower() in ("", "json", "jsonc", "json5")]
    if len(blocks) > 1:
        raise NotJson(f"{len(blocks)} fenced blocks: it is not clear which one is meant")
    inner = (blocks[0] if blocks else text).strip()
    if not inner:
        raise NotJson("no JSON: the text is empty")
    try:
        return inner, json.loads(inner, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise NotJson(f"no JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise NotJson("no JSON: nested too deeply") from None
    except ValueError as error:  # an integer of thousands of digits, NaN
        raise NotJson(f"no JSON: {error}") from None


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")
