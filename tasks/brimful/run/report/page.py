"""``brimful report OUT``: a run as one self-contained HTML page, with its texts packed inside.

The page holds no address of anything outside, and its policy lets it load nothing and run no script but its own. Texts
stand in it as gzip in base64, in *chunks* of whole prompts that the script unpacks when they are looked at: the first
screen is there long before the last text. The scripts and styles are the files in ``assets``.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import os
import stat
from array import array
from collections.abc import Iterator
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from brimful.errors import UsageError
from brimful.run.output.paths import RunPaths
from brimful.run.report.columns import packed
from brimful.run.report.groups import Groups
from brimful.run.report.overview import overview, tiles, when
from brimful.run.report.prompts import Prompts
from brimful.run.report.reading import Run, check_output, read_run
from brimful.runtime.atomic import atomic_write
from brimful.runtime.json_bytes import encode

SCRIPTS = ("dom", "store", "query", "facets", "worddiff", "cells", "list", "reader", "compare", "app")
"""Files of ``assets``, in the order in which the page runs them."""
_FIRST_CHUNK, _CHUNK = 64 << 10, 512 << 10  # bytes of JSON
_HEAD = b"<!doctype html"
_HERE = resources.files("brimful.run.report") / "assets"


def write_report(
    output: Path, page: Path | None = None, other: Path | None = None, inputs: tuple[str, ...] = ()
) -> Path:
    """Write the page of a run, to OUT.report.html by default; returns its path.

    ``other``: a run to compare it with. ``inputs``: where the prompts are, if not where the run found them. Raises
    UsageError, also where ``page`` is a file that is no HTML page, InputError, and FleetError if the page cannot be
    written.
    """
    check_output(output)
    page = page if page is not None else RunPaths(output).report
    _check_page(page)
    run = read_run(output, other)
    prompts = Prompts.of(output, run, inputs)
    try:
        with Groups(run, prompts) as groups, atomic_write(page) as file:
            places, data = columns(run)
            before, after = shell(run, places, prompts.note)
            file.write(before)
            file.write(_block('id="columns"', data))
            chunks = _chunks(groups)
            file.write(next(chunks, b""))
            file.write(after)
            for chunk in chunks:
                file.write(chunk)
            file.write(b"</body>\n</html>\n")
    finally:
        prompts.close()
    return page


def _check_page(page: Path) -> None:
    """Raises UsageError where no page can be, or where another file would be lost, such as a run's output."""
    try:
        mode = page.stat().st_mode
        if stat.S_ISDIR(mode):
            raise UsageError(f"--page {page}: is a directory; name a file in it")
        if not stat.S_ISREG(mode):
            raise UsageError(f"--page {page}: is not a regular file; name one")
        with page.open("rb") as file:
            head = file.read(64)
    except FileNotFoundError:
        folder = Path(os.path.realpath(page)).parent  # of a link, where the page goes
        if not folder.is_dir():
            raise UsageError(
                f"--page {page}: there is no directory {folder}; make it first: mkdir -p {folder}"
            ) from None
        return
    except OSError as error:
        raise UsageError(f"--page {page}: cannot be read: {error.strerror or error}; name another file") from None
    if head and not head.lower().startswith(_HEAD):
        raise UsageError(f"--page {page}: is there already, and is no HTML page; name another file")


def shell(run: Run, places: list[dict[str, Any]], note: str, *, served: bool = False) -> tuple[bytes, bytes]:
    """The page up to where its data begins, and its script.

    ``places``: of the arrays in the data. ``served``: data and texts come from the page's own server.
    """
    meta = {
        "name": run.figures.name,
        "other": run.other.name if run.other else None,
        "served": served,
        "note": note,
        "columns": [
            {
                "key": key,
                "words": None if column.codes is None else [*column.words],
                "numeric": column.numbers is not None,
            }
            for key, column in run.cells.columns.items()
        ],
        "arrays": places,
    }
    script = "".join((_HERE / f"{name}.js").read_text("utf-8") for name in SCRIPTS)
    script = f'"use strict";\n(() => {{\n{script}}})();\n'
    style = (_HERE / "style.css").read_text("utf-8")
    figures, other = run.figures, run.other
    html = Template((_HERE / "page.html").read_text("utf-8")).substitute(
        policy=f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; base-uri 'none'; "
        "form-action 'none'" + ("; connect-src 'self'" if served else ""),
        style=style,
        name=escape(figures.name + (f" and {other.name}" if other else "")),
        when=escape(when(figures)),
        tiles=_both(tiles(figures, brief=True), tiles(other, brief=True)) if other else tiles(figures),
        overview=_both(*(f'<div class="cards">{overview(each)}</div>' if each else "" for each in (figures, other))),
    )
    before = html.encode("utf-8", "backslashreplace") + _block('id="meta"', encode(meta))
    return before, f"<script>{script}</script>\n".encode()


def columns(run: Run) -> tuple[list[dict[str, Any]], bytes]:
    """Where each array stands, and the bytes of all (:func:`brimful.run.report.columns.packed`)."""
    cells = run.cells
    arrays: dict[str, array[Any]] = {
        "starts": cells.starts,
        "choice": array("I", cells.choice),
        "failed": array("B", (source % 2 for source in cells.source)),
    }
    for key, column in cells.columns.items():
        if column.codes is not None:
            arrays[f"codes {key}"] = array("B", column.codes)
        if column.numbers is not None:
            arrays[f"numbers {key}"] = column.numbers
    return packed(arrays)


def _both(first: str, second: str) -> str:
    """One run's HTML, or that of two under their letters."""
    if not second:
        return first
    return "".join(
        f'<div class="both"><h3 class="run-{letter.lower()}">{letter}</h3>{html}</div>'
        for letter, html in (("A", first), ("B", second))
    )


def _chunks(groups: Groups) -> Iterator[bytes]:
    waiting: list[bytes] = []
    start = size = 0
    for number in range(len(groups)):
        waiting.append(encode(groups.get(number)))
        size += len(waiting[-1])
        last = number == len(groups) - 1
        if size >= (_CHUNK if start else _FIRST_CHUNK) or last:
            data = b"[" + b",".join(waiting) + b"]"
            yield _block(f'class="chunk" data-from="{start}" data-to="{number + 1}"', data)
            waiting, start, size = [], number + 1, 0


def _block(attributes: str, data: bytes) -> bytes:
    """A script element that is data: base64 cannot end it."""
    content = base64.b64encode(gzip.compress(data, 6, mtime=0))
    return b'<script type="text/plain" ' + attributes.encode() + b">" + content + b"</script>\n"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
