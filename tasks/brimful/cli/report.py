"""``brimful report``: a page of a run."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from brimful.cli.style import say
from brimful.runtime.interrupt import unwinding


def report(
    output: Annotated[Path, typer.Argument(metavar="OUT", help="The output of a run, as given with -o.")],
    page: Annotated[
        Path | None, typer.Option("--page", "-p", help="The file for the page. Default: OUT.report.html.")
    ] = None,
    diff: Annotated[
        Path | None,
        typer.Option("--diff", metavar="OTHER", help="Compare with the output of another run. Default: none."),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="FILE", help="The run's input, if it is not where the run read it."),
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve the page on this machine until Ctrl-C, for runs of any size.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of --serve; 0 takes a free one.")] = 0,
) -> None:
    """Make one self-contained HTML page of a run, to read offline: prompts with their rollouts, search and figures."""
    with unwinding():
        if serve:
            _serve(output, diff, tuple(inputs or ()), port, page)
        else:
            from brimful.run.report.page import write_report

            print(write_report(output, page, diff, tuple(inputs or ())))


def _serve(output: Path, diff: Path | None, inputs: tuple[str, ...], port: int, page: Path | None) -> None:
    from brimful.errors import UsageError
    from brimful.run.report.serve import ReportServer

    if page is not None:
        raise UsageError("--page names a file, and --serve writes none; leave one of them out")
    with suppress(KeyboardInterrupt):
        say(f"reading {output}")
        with ReportServer(output, diff, inputs, port=port) as server:
            print(server.url, flush=True)
            say("Only this machine can open it, and only with this address. Ctrl-C stops it.")
            server.serve()
