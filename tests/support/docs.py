"""The tables of the documentation that are made from the code: settings, commands, metrics, and the house's.

``PYTHONPATH=tests python -m support.docs`` writes them into the pages that show them, between ``<!-- NAME -->`` and
``<!-- end -->``.
"""

from __future__ import annotations

import ast
import enum
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ByteSize
from typer.main import get_command

from brimful.cli.commands import app
from brimful.config import Settings
from brimful.words.setting_faults import FORMER_NAMES, variable
from brimful_worker.metrics.catalogue import CATALOGUE
from brimful_worker.metrics.queues import QUEUE_CATALOGUE
from support import house

DOCS = house.ROOT / "docs"


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """The docstring of each field of the model, its bases' too. Read here: pydantic would do it at each import."""
    found: dict[str, str] = {}
    for part in (part for part in reversed(model.__mro__) if part.__module__.startswith("brimful")):
        body = ast.parse(textwrap.dedent(inspect.getsource(part))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, below in pairwise(body.body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                    found[name] = inspect.cleandoc(text)
    return found


def settings() -> str:
    """A row for each field of the settings, the front door's last."""
    described = descriptions(Settings)
    ours = [name for name in Settings.model_fields if name in Settings.__annotations__]
    theirs = [name for name in Settings.model_fields if name not in Settings.__annotations__]
    lines = ["| setting | default | what |", "| --- | --- | --- |"]
    for name in (*ours, *theirs):
        field = Settings.model_fields[name]
        about, _, said = _cell(described.get(name, "")).partition("Default: ")
        default = _default(field.default) or said.strip().removesuffix(".") or "–"
        lines.append(f"| `{variable(name)}` | {default} | {about.strip()} |")
    return "\n".join([*lines, ""])


def former_names() -> str:
    rows = [f"| `{variable(former)}` | `{variable(name)}` |" for former, name in FORMER_NAMES.items()]
    return "\n".join(["| former name | setting |", "| --- | --- |", *rows, ""])


def metrics() -> str:
    lines = ["| metric | kind, unit | labels | what |", "| --- | --- | --- | --- |"]
    for metric in (*CATALOGUE, *QUEUE_CATALOGUE):
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "–"
        kind = f"{type(metric).__name__.lower()}, {metric.unit}"
        lines.append(f"| `{metric.name}` | {kind} | {labels} | {_cell(metric.description)} |")
    return "\n".join([*lines, ""])


def commands() -> str:
    """Every command's help text, and a row for each of its arguments and options."""
    parts: list[str] = []
    for path, command in _commands(get_command(app)):
        if not path:
            continue
        context = _context(command, path)
        parts += [f"## brimful {' '.join(path)}", ""]
        parts += [f"`{context.command_path} {' '.join(command.collect_usage_pieces(context))}`", ""]
        parts += [re.sub(r"(?<!\n)\n(?!\n)", " ", command.help.strip()), ""]
        rows = [record for record in (each.get_help_record(context) for each in command.params) if record]
        if rows:
            parts += ["| argument or option | what |", "| --- | --- |"]
            parts += [f"| `{name.replace('|', chr(92) + '|')}` | {_cell(about)} |" for name, about in rows]
            parts.append("")
    return "\n".join(parts)


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    if hasattr(command, "list_commands"):
        for name in command.list_commands(None):
            yield from _commands(command.get_command(None, name), (*path, name))


def _context(command: Any, path: tuple[str, ...]) -> Any:
    return command.context_class(command, info_name=" ".join(("brimful", *path)))


def _default(value: Any) -> str:
    """The value as a user types it; an empty text for None."""
    if value in (None, ""):
        return ""
    if isinstance(value, ByteSize):
        return f"{value / 2**20:g}MiB"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, enum.Enum):
        return str(value.value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("``", "`").replace("|", "\\|").replace("<", "&lt;").strip()


PARTS: Mapping[str, Callable[[], str]] = {
    "settings": settings,
    "former names": former_names,
    "metrics": metrics,
    "commands": commands,
    **house.PARTS,
}


def pages() -> list[Path]:
    """The pages that show made parts."""
    marked = re.compile(rf"^<!-- ({'|'.join(PARTS)}) -->$", re.M)
    files = [house.ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
    return [page for page in files if marked.search(page.read_text("utf-8"))]


if __name__ == "__main__":
    for page in pages():
        page.write_text(house.renewed(page.read_text("utf-8"), PARTS), "utf-8")
