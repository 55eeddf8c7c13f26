"""The Markdown of README and docs as tests read it: fenced blocks with their markers, links, headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_MARKER = re.compile(r"<!-- (not run|file|exit|background|after|transcript|alternatives)(?:: ((?:(?!-->).)*))? -->\n\Z")
_WHOLE = re.compile(r"^<!-- not run, any block: (.*) -->$", re.M)
_LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")


def pages() -> list[Path]:
    """Every page for readers, those of the benchmarks too."""
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "ops/README.md")]
    return [*top, *sorted((ROOT / "docs").rglob("*.md"))]


def label(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Block:
    """A fenced block. ``markers`` are the comments directly above it: ``<!-- NAME: VALUE -->``, equal names joined."""

    page: Path
    line: int
    language: str
    text: str
    markers: dict[str, str]

    def __str__(self) -> str:
        return f"{label(self.page)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text("utf-8")
    whole = _WHOLE.search(text)
    for fence in _FENCE.finditer(text):
        markers: dict[str, str] = {"not run": whole[1]} if whole else {}
        above = text[: fence.start()]
        while found := _MARKER.search(above):
            name, value = found[1], found[2] or ""
            markers[name] = f"{value}\n{markers[name]}" if name in markers else value
            above = above[: found.start()]
        yield Block(page, text.count("\n", 0, fence.start()) + 1, fence[1], fence[2], markers)


def prose(page: Path) -> str:
    """The page without its blocks and spans of code."""
    text = _FENCE.sub("", page.read_text("utf-8"))
    return re.sub(r"(`+)(?!`).+?\1", "code", text)


def links(page: Path) -> list[str]:
    return _LINK.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """The fragments of its headings, as GitHub and the site make them."""
    text = _FENCE.sub("", page.read_text("utf-8"))
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} (.+)$", text, re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        slug = re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")
        found |= {slug, re.sub(r"-{2,}", "-", slug)}
    return found
