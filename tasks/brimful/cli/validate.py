"""``brimful validate``: a dry run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from brimful.cli.options import reading as shared
from brimful.cli.style import say
from brimful.run.input.formats import InputFormat
from brimful.words.counted import counted

if TYPE_CHECKING:
    from brimful.run.validate import Validation


def validate(
    inputs: Annotated[list[str], typer.Argument(metavar="INPUT", help="Files as for `brimful run`; - is stdin.")],
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
    pack: shared.Pack = "auto",
    input_format: shared.Input = InputFormat.AUTO,
    prompt_column: shared.PromptColumn = None,
    id_column: shared.IdColumn = None,
    no_header: shared.NoHeader = False,
    limit: shared.Limit = None,
    strict: shared.Strict = False,
    provider: shared.Provider = None,
    latency: Annotated[
        float | None, typer.Option(min=0.001, help="Seconds that one API call takes, for the estimate. Default: 1.")
    ] = None,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="As typed for run; here it changes nothing, since nothing is sent.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object in place of the table.")] = False,
) -> None:
    """Read an input as run would and show what sampling it takes. Nothing is sampled, and no key is needed.

    Exits 3 if some lines are bad, 2 if nothing could be sampled.
    """
    given = dict(locals())
    import json

    from brimful.config import Settings
    from brimful.packing.units import parse_pack
    from brimful.run.validate import validate as examine

    options = shared.read_options(given)
    settings = Settings.load(typed=True, provider=provider)
    found = examine(
        options,
        settings.profile,
        pack=parse_pack(pack),
        latency_s=latency,
        strict=strict,
        slots_auto=settings.slots_auto,
    )
    if as_json:
        print(json.dumps(found.as_json()))
    else:
        _print(found)
    raise typer.Exit(3 if found.bad else 0)


def _print(found: Validation) -> None:
    from brimful.run.display.display import plain_table
    from brimful.run.validate import shown_body

    more = found.bad - len(found.faults)
    for line in (*found.faults, *([f"and {counted(more, 'more bad line')}"] if more > 0 else []), *found.notes):
        say(line)
    print(plain_table(found.rows()))
    if found.first is not None:
        print(f"\nthe first API call:\n{shown_body(found.first)}")
