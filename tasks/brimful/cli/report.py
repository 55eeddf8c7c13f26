"""``brimful report``: a page of a run. Alone, as every command has a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from brimful.runtime.interrupt import unwinding


def report(
    output: Annotated[Path, typer.Argument(metavar="OUT", help="The output of a run, as given with -o.")],
    page: Annotated[
        Path | None, typer.Option("--page", "-p", help="Where to write the page; default OUT.report.html.")
    ] = None,
) -> None:
    """Make one self-contained HTML page of a run, to read offline: what was sampled, when, and how well."""
    from brimful.run.report.page import write_report

    with unwinding():
        print(write_report(output, page))
