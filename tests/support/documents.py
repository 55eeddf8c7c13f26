"""Examples of the documentation, for tests that run them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parents[2] / "docs"
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Example(NamedTuple):
    language: str
    text: str


def sections(page: str, level: int) -> dict[str, str]:
    """Heading → what stands below it, up to the next heading of this or a higher level."""
    parts = re.split(rf"^(#{{1,{level}}}) (.+)\n", (DOCS / page).read_text("utf-8"), flags=re.MULTILINE)
    return {
        heading: text for marks, heading, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
        if len(marks) == level
    }  # fmt: skip


def examples(section: str) -> list[Example]:
    """The code blocks of a section."""
    return [Example(*found) for found in _FENCE.findall(section)]
