"""``brimful run``: sample a file. Its input's options are in ``cli/options``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from brimful.cli.options import reading as shared
from brimful.names import Workload
from brimful.run.input.formats import InputFormat
from brimful.run.output.paths import SUFFIXES, Order, OutputFormat
from brimful.words.phrases import enumerated


def run(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT",
            help="JSON lines or arrays, OpenAI Batch lines, text, CSV, Parquet or Arrow, also .gz and .zst; a folder "
            "of them, or a quoted pattern; - is stdin.",
        ),
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="OUT",
            help=f"The file for rollouts: {enumerated(SUFFIXES, 'or')}; - is stdout.",
        ),
    ],
    model: shared.Model = None,
    n: shared.N = None,
    max_tokens: shared.MaxTokens = None,
    temperature: shared.Temperature = None,
    seed: shared.Seed = None,
    sweep: shared.SweepFile = None,
    param: shared.Param = None,
    passed: shared.Pass = None,
    column: shared.Column = None,
    system: shared.System = None,
    template: shared.Template = None,
    template_file: shared.TemplateFile = None,
    system_template: shared.SystemTemplate = None,
    messages_template: shared.MessagesTemplate = None,
    chat: shared.Chat = False,
    job: shared.Job = False,
    input_format: shared.Input = InputFormat.AUTO,
    prompt_column: shared.PromptColumn = None,
    id_column: shared.IdColumn = None,
    no_header: shared.NoHeader = False,
    limit: shared.Limit = None,
    strict: shared.Strict = False,
    form: Annotated[
        OutputFormat,
        typer.Option("--format", help=f"The output's format: {', or '.join(form.words for form in OutputFormat)}."),
    ] = OutputFormat.ROLLOUTS,
    order: Annotated[Order, typer.Option(help="Order of the output: as rollouts arrive, or as the input has them.")] = (
        Order.COMPLETION
    ),
    keep: Annotated[
        str,
        typer.Option(metavar="COLUMNS", help="Columns that the output repeats: all, none, or names (a,b,prompt)."),
    ] = "all",
    retry_errors: Annotated[
        bool, typer.Option("--retry-errors", help="Sample only the prompts that failed before.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over; the old files are renamed. Default: continue what they hold.")
    ] = False,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Go on even if all first API calls are refused in the same words.")
    ] = False,
    budget_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens that the whole run may use. Default: no limit.")
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            min=0.0001,
            help="Money that the whole run may cost, by BRIMFUL_PRICES or the profile. Default: no limit.",
        ),
    ] = None,
    pack: shared.Pack = "auto",
    workload: Annotated[
        Workload, typer.Option(help="The workload; interactive is served before batch and may cost more.")
    ] = Workload.BATCH,
    weight: Annotated[
        float | None,
        typer.Option(help="Share beside other runs: 3 gets three times as much as 1. Default: BRIMFUL_WEIGHT, else 1."),
    ] = None,
    pace: Annotated[Path | None, typer.Option(hidden=True)] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Worker processes of a fleet on this machine. Default: BRIMFUL_WORKERS, else 4."),
    ] = None,
    provider: shared.Provider = None,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Accept only JSON texts that fit a JSON Schema's file, or a pydantic module:Model. Default: any text.",
        ),
    ] = None,
    hook: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Call it with each rollout: it adds columns, or asks for another sample. Default: no hook.",
        ),
    ] = None,
    tries: Annotated[
        int | None, typer.Option(min=1, help="Samples of a rollout until --schema and --hook accept one. Default: 3.")
    ] = None,
    hook_workers: Annotated[int | None, typer.Option(min=1, help="Calls of the hook at once. Default: 8.")] = None,
    hook_timeout: Annotated[
        float | None, typer.Option(min=0.001, help="Seconds that one call of the hook may take. Default: 60.")
    ] = None,
    keep_rejected: Annotated[
        bool, typer.Option("--keep-rejected", help="Keep the texts of rejected rollouts, in OUT.rejected.jsonl.")
    ] = False,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Use a mock gateway in place of the provider; needs no key.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end, in place of the table.")
    ] = False,
    no_progress: Annotated[
        bool, typer.Option("--no-progress", help="Show no progress, only messages and the table.")
    ] = False,
) -> None:
    """Sample a file of prompts. The same command, typed again, continues where it stopped.

    It uses the fleet at BRIMFUL_REDIS_URL; where that is not set, it starts a fleet on this machine.

    Exits 0 when everything is sampled, 1 when it could not go on (the same command resumes it), 2 for bad input or
    settings, 3 when some prompts failed (OUT.errors.jsonl), 4 when the budget is used up, 5 when the key is refused,
    130 when interrupted.
    """
    given = dict(locals())
    from brimful.config import Settings
    from brimful.packing.units import parse_pack
    from brimful.run.checks.options import load_checks
    from brimful.run.input.columns import Keep
    from brimful.run.launch import DisplayOptions, run_to_end
    from brimful.run.options import RunOptions
    from brimful.runtime.span_export import set_up

    options = RunOptions(
        read=shared.read_options(given, workload),
        output=output,
        form=form,
        order=order,
        keep=Keep.parse(keep),
        pack=parse_pack(pack),
        strict=strict,
        retry_errors=retry_errors,
        fresh=fresh,
        keep_going=keep_going,
        budget_tokens=budget_tokens,
        budget=budget,
        pace=pace,
        workers=workers,
        rehearse=rehearse,
        checks=load_checks(
            schema, hook, tries=tries, workers=hook_workers, timeout_s=hook_timeout, keep_rejected=keep_rejected
        ),
    )
    settings = Settings.load(typed=True, provider=provider, workers=workers, weight=weight)
    if rehearse:
        settings = settings.without_guess()
    set_up("brimful-run")
    display = DisplayOptions(json=json, progress=not no_progress, command=("brimful", *sys.argv[1:]))
    raise typer.Exit(int(run_to_end(options, settings, display)))
