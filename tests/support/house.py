"""The structure of the source as its imports show it, held against ``docs/house.toml``.

``python tests/support/house.py`` writes the tables of rooms and levels into the pages that show them.
"""

from __future__ import annotations

import ast
import itertools
import re
import textwrap
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOTS = {"brimful": ROOT / "tasks" / "brimful", "brimful_worker": ROOT / "workers" / "brimful_worker"}
PAGES = (ROOT / "docs" / "house.md", ROOT / "CONTRIBUTING.md")
WORKER_MAY_USE = (
    "errors",
    "words",
    "names",
    "nesting",
    "addresses",
    "config",
    "credentials",
    "profile",
    "request",
    "outcome",
    "limits",
    "packing",
    "schema",
    "runtime",
    "state",
)
"""What ``brimful_worker`` may import of ``brimful``, beside the run ledger in ``brimful.dispatch``."""
DISPATCH_MAY_USE = ("brimful.dispatch.ledger", "brimful.dispatch.messages")


@dataclass(frozen=True, slots=True)
class Import:
    module: str
    line: int
    target: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


@cache
def modules() -> dict[str, Path]:
    """Every module of both packages, by dotted name."""
    found: dict[str, Path] = {}
    for package, folder in ROOTS.items():
        for file in sorted(folder.rglob("*.py")):
            parts = [package, *file.relative_to(folder).with_suffix("").parts]
            found[".".join(parts).removesuffix(".__init__")] = file
    return found


@cache
def imports() -> list[Import]:
    """Every import of one of our modules by another, those in functions and under TYPE_CHECKING included."""
    known = modules()
    found: list[Import] = []
    for module, file in known.items():
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                full = [f"{node.module}.{alias.name}" for alias in node.names]
                targets = [name if name in known else node.module for name in full]
            else:
                continue
            found += [Import(module, node.lineno, target) for target in targets if target in known and target != module]
    return found


@cache
def rooms() -> dict[str, tuple[int, str]]:
    """Level and purpose of each room of ``docs/house.toml``."""
    listed = tomllib.loads((ROOT / "docs" / "house.toml").read_text("utf-8"))["room"]
    return {room["name"]: (room["level"], room["what"]) for room in listed}


def room_of(module: str) -> str:
    """The room with the longest name that ``module`` lies in."""
    known = [room for room in rooms() if module == room or module.startswith(room + ".")]
    return max(known, key=len, default="")


def circles() -> list[list[str]]:
    """Groups of modules that import each other, directly or through others (Tarjan's algorithm)."""
    graph: dict[str, set[str]] = {module: set() for module in modules()}
    for each in imports():
        graph[each.module].add(each.target)
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = low[module] = len(order)
        stack.append(module)
        for target in graph[module]:
            if target not in order:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], order[target])
        if low[module] == order[module]:
            group = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(group) > 1:
                found.append(sorted(group))

    for module in graph:
        if module not in order:
            visit(module)
    return found


def table() -> str:
    """``docs/house.toml`` as Markdown, a row a room."""
    lines = []
    for package, title in (("brimful", "tasks/brimful"), ("brimful_worker", "workers/brimful_worker")):
        lines += [f"### `{title}`", "", "| level | room | what it is |", "| --- | --- | --- |"]
        for name, (level, what) in rooms().items():
            if name.split(".")[0] == package:
                lines.append(f"| {level} | `{_label(name)}` | {what} |")
        lines.append("")
    return "\n".join(lines)


def levels() -> str:
    """The same as a picture: a row a level, both packages side by side."""
    rows: dict[int, dict[str, list[str]]] = {}
    for name, (level, _) in rooms().items():
        rows.setdefault(level, {}).setdefault(name.split(".")[0], []).append(_label(name))
    lines = ["```text", f"level  {'tasks/brimful':60}workers/brimful_worker"]
    for level in sorted(rows, reverse=True):
        left, right = ("  ".join(rows[level].get(package, ())) for package in ROOTS)
        cells = [textwrap.wrap(text, 58) or [""] for text in (left, right)]
        for place, (one, other) in enumerate(itertools.zip_longest(*cells, fillvalue="")):
            lines.append(f"{level if place == 0 else '':>5}  {one:60}{other}".rstrip())
    return "\n".join([*lines, "```", ""])


def _label(name: str) -> str:
    package, _, rest = name.partition(".")
    if not rest:
        return "__init__.py"
    return rest.replace(".", "/") + ("/" if modules()[f"{package}.{rest}"].name == "__init__.py" else ".py")


def renewed(text: str, parts: Mapping[str, Callable[[], str]]) -> str:
    """``text`` with what stands between ``<!-- NAME -->`` and ``<!-- end -->`` made again by the part of that name."""

    def made(found: re.Match[str]) -> str:
        return f"<!-- {found[1]} -->\n{parts[found[1]]()}<!-- end -->"

    return re.sub(rf"<!-- ({'|'.join(parts)}) -->\n.*?<!-- end -->", made, text, flags=re.DOTALL)


PARTS: Mapping[str, Callable[[], str]] = {"rooms": table, "levels": levels}

if __name__ == "__main__":
    for page in PAGES:
        page.write_text(renewed(page.read_text("utf-8"), PARTS), "utf-8")
