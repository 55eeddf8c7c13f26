"""Counted nouns: one of a thing is said as one, everywhere."""

from __future__ import annotations

import re
from pathlib import Path

from brimful.words.counted import counted
from support import house

_HAND_MADE = re.compile(r"""(?:''|"s"|'s') if [^}\n]+ else (?:'s'|''|"")""")


def test_one_is_singular_and_thousands_are_grouped() -> None:
    assert [counted(count, "API call") for count in (0, 1, 1291)] == ["0 API calls", "1 API call", "1,291 API calls"]
    assert counted(2, "reply", "replies") == "2 replies"


def test_no_other_code_makes_plurals_of_counts() -> None:
    """An s alone, without the number, or a unit such as ``s`` for seconds is something else."""
    found = {}
    for file in house.modules().values():
        text = Path(file).read_text("utf-8")
        found[file.name] = [
            hit.group() for hit in _HAND_MADE.finditer(text) if "count" in hit.group() or "> 1" in hit.group()
        ]
    assert {name: hits for name, hits in found.items() if hits} == {"changes.py": ["'s' if len(words) > 1 else ''"]}
