"""``brimful run``: sample a file."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from brimful.run.input.reader import ReadOptions


def run(
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="INPUT…", help="JSONL, OpenAI Batch or text, also .gz, .zst; - is standard input."),
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", metavar="OUT", help="Where rollouts go: .jsonl or .parquet; - is standard output."
        ),
    ],
    model: Annotated[str | None, typer.Option(help="Where a line names none.")] = None,
    n: Annotated[int | None, typer.Option(help="Rollouts of each prompt.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Of one rollout.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy; the provider's own otherwise.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the sampling, for the same texts again.")] = None,
    param: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Any other field, as top_p=0.9.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="A system prompt, for chat.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Ask the chat endpoint.")] = False,
    job: Annotated[bool, typer.Option("--job", help="Ask as Jobs: submit, then fetch the result.")] = False,
    input_format: Annotated[str, typer.Option(help="auto, jsonl or text (a prompt a line).")] = "auto",
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first of them.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first bad line.")] = False,
    form: Annotated[str, typer.Option("--format", help="rollouts (a line each) or openai-batch.")] = "rollouts",
    order: Annotated[str, typer.Option(help="completion or input.")] = "completion",
    retry_errors: Annotated[bool, typer.Option("--retry-errors", help="Ask only what failed before.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew; the old files get other names.")] = False,
    budget_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens that the whole run may use.")] = None,
    pack: Annotated[str, typer.Option(help="Prompts that share a request: auto, off, or a number.")] = "auto",
    workload: Annotated[str, typer.Option(help="batch, or interactive: served before batch.")] = "batch",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes of a fleet on this machine.")] = None,
    provider: Annotated[str | None, typer.Option(help="acs, kios, openai or your own.")] = None,
    rehearse: Annotated[bool, typer.Option("--rehearse", help="Against the mock gateway, without a key.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one object at the end.")] = False,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="Show only what must be said.")] = False,
) -> None:
    """Sample a file of prompts; typed again, it goes on where it stopped.

    With BRIMFUL_REDIS_URL it uses the fleet there, else it brings one of its own on this machine.

    Exits 0 when all is sampled, 3 with failures (OUT.errors.jsonl), 2 for bad input or settings, 4 at the end of the
    budget, 5 when the key is refused, 130 when interrupted.
    """
    from brimful.config import Settings
    from brimful.packing.units import parse_pack
    from brimful.run.launch import DisplayOptions, run_to_end
    from brimful.run.options import RunOptions, parse_choice
    from brimful.run.output.paths import Order, OutputFormat

    fields = stated_fields(param, model=model, n=n, max_tokens=max_tokens, temperature=temperature, seed=seed)
    options = RunOptions(
        read=read_options(inputs, input_format, limit, fields, system, chat, job, workload),
        output=output,
        form=parse_choice(OutputFormat, "--format", form),
        order=parse_choice(Order, "--order", order),
        pack=parse_pack(pack),
        strict=strict,
        retry_errors=retry_errors,
        fresh=fresh,
        budget_tokens=budget_tokens,
        workers=workers,
        rehearse=rehearse,
    )
    settings = Settings.load(provider=provider, workers=workers)
    display = DisplayOptions(json=json, progress=not no_progress, command=("brimful", *sys.argv[1:]))
    raise typer.Exit(int(run_to_end(options, settings, display)))


def stated_fields(param: list[str] | None, **flags: Any) -> dict[str, Any]:
    """The provider's fields that the command states; a line's own beat them. Raises UsageError."""
    from brimful.run.options import parse_parameters

    return {**parse_parameters(param or []), **{name: value for name, value in flags.items() if value is not None}}


def read_options(
    inputs: list[str],
    input_format: str,
    limit: int | None,
    fields: dict[str, Any],
    system: str | None,
    chat: bool,
    job: bool,
    workload: str,
) -> ReadOptions:
    """What ``run`` and ``validate`` read alike. Raises UsageError."""
    from brimful.errors import UsageError
    from brimful.names import Mode, Workload
    from brimful.run.input.formats import InputFormat
    from brimful.run.input.reader import ReadOptions
    from brimful.run.input.sources import Source
    from brimful.run.options import parse_choice

    if chat and job:
        raise UsageError("--chat, --job: one of them; a Job is a completion")
    return ReadOptions(
        sources=tuple(map(Source, inputs)),
        form=parse_choice(InputFormat, "--input-format", input_format),
        defaults=fields,
        mode=Mode.CHAT if chat else Mode.JOB if job else None,
        system=system,
        workload=parse_choice(Workload, "--workload", workload),
        limit=limit,
    )
