"""Hooks of ``mkdocs.yml``: what differs between the repository and the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Links to files outside ``docs/`` become their text: the site does not hold them. The README is the home page."""
    here = Path(page.file.abs_src_path).parent

    def inside(found: re.Match[str]) -> str:
        text, target = found[1], found[2]
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        path = (here / target).resolve()
        if path.is_relative_to(ROOT / "docs"):
            return found[0]
        if path == ROOT / "README.md":
            return f"[{text}]({'../' * page.file.src_uri.count('/')}index.md)"
        name = path.relative_to(ROOT).as_posix()
        return text if name in text else f"{text} (`{name}`)"

    return _LINK.sub(inside, markdown)


class MarkdownDocstrings(griffe.Extension):
    """Docstrings are written in reStructuredText, of which they use little: roles, double backticks, ``::``."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = re.sub(r":[a-z]+:`~?([^`]+)`", r"`\1`", obj.docstring.value)
            text = re.sub(r"``([^`]+)``", r"`\1`", text)
            obj.docstring.value = re.sub(r":?:\n\n(?=    )", _colon, text)


def _colon(found: re.Match[str]) -> str:
    """A literal block is marked by its indentation alone."""
    return "\n\n" if found.start() == 0 or found.string[found.start() - 1] == "\n" else ":\n\n"
