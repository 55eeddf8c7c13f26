"""``brimful validate``: a dry run."""

from __future__ import annotations

from typing import Annotated

import typer


def validate(
    inputs: Annotated[list[str], typer.Argument(metavar="INPUT…", help="As for run; - is stdin.")],
    model: Annotated[str | None, typer.Option(help="Where a line names none.")] = None,
    n: Annotated[int | None, typer.Option(help="Rollouts of each prompt.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Of one rollout.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy; the provider's own otherwise.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the sampling, for the same texts again.")] = None,
    param: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Any other field.")] = None,
    system: Annotated[str | None, typer.Option(help="A system prompt, for chat.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Ask the chat endpoint.")] = False,
    job: Annotated[bool, typer.Option("--job", help="Ask as Jobs: submit, then fetch the result.")] = False,
    pack: Annotated[str, typer.Option(help="auto, off, or a number.")] = "auto",
    input_format: Annotated[str, typer.Option(help="auto, jsonl or text (a prompt a line).")] = "auto",
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first of them.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first bad line.")] = False,
    provider: Annotated[str | None, typer.Option(help="acs, kios, openai or your own.")] = None,
    latency: Annotated[float | None, typer.Option(help="Seconds that a request takes, to reckon with.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one object.")] = False,
) -> None:
    """Read an input as run would, and tell what it comes to; nothing is sampled and no key is needed.

    Exits 3 where some lines are bad, 2 where nothing could be sampled.
    """
    from brimful.cli.run import read_options, stated_fields
    from brimful.config import Settings
    from brimful.packing.units import parse_pack
    from brimful.run.validate import validate as look

    fields = stated_fields(param, model=model, n=n, max_tokens=max_tokens, temperature=temperature, seed=seed)
    options = read_options(inputs, input_format, limit, fields, system, chat, job, "batch")
    settings = Settings.load(provider=provider)
    found = look(options, settings.profile, pack=parse_pack(pack), latency_s=latency, strict=strict)
    if json:
        _print_json(found.as_json())
    else:
        _print(found)
    raise typer.Exit(3 if found.bad else 0)


def _print_json(found: dict[str, object]) -> None:
    import json

    print(json.dumps(found))


def _print(found: object) -> None:
    import sys

    from brimful.run.display.display import plain_table
    from brimful.run.validate import Validation, shown_body

    assert isinstance(found, Validation)
    for fault in found.faults:
        print(f"brimful: {fault}", file=sys.stderr)
    if found.bad > len(found.faults):
        print(f"brimful: and {found.bad - len(found.faults):,} more bad lines", file=sys.stderr)
    for note in found.notes:
        print(f"brimful: {note}", file=sys.stderr)
    print(plain_table(found.rows()))
    if found.first is not None:
        print(f"\nthe first request:\n{shown_body(found.first)}")
