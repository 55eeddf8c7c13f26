"""``brimful run``: sample a file."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

_INPUT, _SAMPLING, _OUTPUT, _FLEET = "Input", "Sampling", "Output", "Fleet"


def run(
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="INPUT…", help="JSONL, OpenAI Batch or plain text, also .gz and .zst; - is stdin."),
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="OUT", help="A .jsonl or .parquet file; - is stdout.")
    ],
    model: Annotated[str | None, typer.Option(help="Where a line names none.", rich_help_panel=_SAMPLING)] = None,
    n: Annotated[int | None, typer.Option(help="Rollouts of each prompt.", rich_help_panel=_SAMPLING)] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Of one rollout.", rich_help_panel=_SAMPLING)] = None,
    temperature: Annotated[float | None, typer.Option(rich_help_panel=_SAMPLING)] = None,
    seed: Annotated[int | None, typer.Option(rich_help_panel=_SAMPLING)] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="Any other field of the provider's, as top_p=0.9.", rich_help_panel=_SAMPLING
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(help="A system prompt, for chat.", rich_help_panel=_SAMPLING)] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Ask the chat endpoint.", rich_help_panel=_SAMPLING)] = False,
    job: Annotated[bool, typer.Option("--job", help="Ask as Jobs.", rich_help_panel=_SAMPLING)] = False,
    input_format: Annotated[
        str, typer.Option(help="auto, jsonl or text (a prompt a line).", rich_help_panel=_INPUT)
    ] = "auto",
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only the first so many requests.", rich_help_panel=_INPUT)
    ] = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Stop at the first bad line, instead of recording it.", rich_help_panel=_INPUT),
    ] = False,
    form: Annotated[
        str, typer.Option("--format", help="rollouts (a line each) or openai-batch.", rich_help_panel=_OUTPUT)
    ] = "rollouts",
    order: Annotated[str, typer.Option(help="completion or input.", rich_help_panel=_OUTPUT)] = "completion",
    retry_errors: Annotated[
        bool, typer.Option("--retry-errors", help="Ask only what failed before.", rich_help_panel=_OUTPUT)
    ] = False,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Begin anew; what there is is kept under another name.", rich_help_panel=_OUTPUT),
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one object with the figures at the end.", rich_help_panel=_OUTPUT)
    ] = False,
    no_progress: Annotated[bool, typer.Option("--no-progress", rich_help_panel=_OUTPUT)] = False,
    pack: Annotated[
        str, typer.Option(help="Prompts that share a request: auto, off, or a number.", rich_help_panel=_FLEET)
    ] = "auto",
    workload: Annotated[str, typer.Option(help="batch or interactive.", rich_help_panel=_FLEET)] = "batch",
    budget_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens that the whole run may use.", rich_help_panel=_FLEET)
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes of a fleet on this machine.", rich_help_panel=_FLEET)
    ] = None,
    provider: Annotated[
        str | None, typer.Option(help="Its profile: acs, kios, openai or your own.", rich_help_panel=_FLEET)
    ] = None,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Against the stand-in gateway; no key is needed.", rich_help_panel=_FLEET)
    ] = False,
) -> None:
    """Sample a file of prompts; typed again, it goes on where it stopped.

    With BRIMFUL_REDIS_URL it uses the fleet there, else it brings one of its own on this machine.
    """
    from brimful.config import Settings
    from brimful.run.launch import Showing, run_to_end
    from brimful.run.options import OutputFormat, RunOptions, parse_choice
    from brimful.run.units import parse_pack

    options = RunOptions(
        read=_read_options(inputs, input_format, limit, _fields(locals()), system, chat, job, workload),
        output=output,
        form=parse_choice(OutputFormat, "--format", form),
        order=_order(order),
        pack=parse_pack(pack),
        strict=strict,
        retry_errors=retry_errors,
        fresh=fresh,
        budget_tokens=budget_tokens,
        workers=workers,
        rehearse=rehearse,
    )
    settings = Settings.load(provider=provider, workers=workers)
    showing = Showing(json=json, progress=not no_progress, command=("brimful", *sys.argv[1:]))
    raise typer.Exit(int(run_to_end(options, settings, showing)))


def _order(order: str) -> Any:
    from brimful.run.options import Order, parse_choice

    return parse_choice(Order, "--order", order)


def _fields(given: dict[str, Any]) -> dict[str, Any]:
    """The provider's fields that the command states; a line's own beat them."""
    from brimful.run.options import parse_parameters

    names = ("model", "n", "max_tokens", "temperature", "seed")
    fields = {name: given[name] for name in names if given[name] is not None}
    return {**parse_parameters(given["param"] or []), **fields}


def _read_options(
    inputs: list[str],
    input_format: str,
    limit: int | None,
    fields: dict[str, Any],
    system: str | None,
    chat: bool,
    job: bool,
    workload: str,
) -> Any:
    from brimful.errors import UsageError
    from brimful.names import Mode, Workload
    from brimful.run.formats import InputFormat
    from brimful.run.options import ReadOptions, parse_choice
    from brimful.run.sources import Source

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
