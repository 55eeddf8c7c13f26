"""What a template shows for a value, and what it says when a column is not there. Imported by the Jinja child too."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from brimful.errors import InputError
from brimful.words.phrases import cut

MAX_TEXT = 16 << 20
"""Characters that one template may render for a line."""
_NAMES = 12  # columns that a message lists
_NAME = 40  # characters of each
_FAULT = re.compile(r"(column '.*?' of )?--(template|template-file|system-template|messages-template)\b")


def text_of(value: Any) -> str:
    """Strings as they are, every other value as JSON: ``true``, ``4``, ``["a","b"]``."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def missing_column(name: str, label: str, row: Mapping[str, Any]) -> InputError:
    """``label`` is the template's, such as ``--template``."""
    if row.get(name, ...) is None:
        shown = name if name.isidentifier() else f"row[{name!r}]"
        return InputError(f"column {name!r} of {label} is null; fill it in, or use {{{{ {shown} or '' }}}} (Jinja2)")
    close = get_close_matches(name.lower(), [str(other).lower() for other in row], 1, 0.75)
    meant = next((other for other in row if str(other).lower() == close[0]), None) if close else None
    hint = f" (did you mean {meant!r}?)" if meant is not None else ""
    return InputError(f"column {name!r} of {label} is missing{hint}; the line has {_listed(row)}")


def too_long(label: str) -> InputError:
    return InputError(f"{label} renders more than {MAX_TEXT >> 20} million characters for this line")


def shared_fault(message: str) -> str | None:
    """What messages about one fault of a template have in common; None for any other message."""
    return message.partition("; the line has ")[0] if _FAULT.match(message) else None


def _listed(names: Iterable[str]) -> str:
    every = [cut(name, _NAME) for name in names]
    more = f" and {len(every) - _NAMES:,} more" if len(every) > _NAMES else ""
    return ", ".join(every[:_NAMES]) + more if every else "none"
