"""The options by which ``brimful run`` and ``brimful validate`` read their input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from brimful.names import Workload
from brimful.run.input.formats import InputFormat

if TYPE_CHECKING:
    from brimful.run.input.reader import ReadOptions

_NUMBERS: dict[str, type[int] | type[float]] = {"max_tokens": int, "temperature": float, "seed": int}


def _providers() -> list[str]:
    """For shell completion."""
    from brimful.config import Settings
    from brimful.profile import load_profiles

    return sorted(load_profiles(Settings.load().profiles))


Model = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The model of lines that name none; a,b: each line with each of them. Default: the profile's model.",
    ),
]
N = Annotated[int | None, typer.Option(min=1, help="Rollouts of each prompt, where the line names no n. Default: 1.")]
MaxTokens = Annotated[
    str | None,
    typer.Option(
        metavar="INTEGER",
        help="Tokens of one rollout at most; 16,64: each line with each. Default: the provider's own limit.",
    ),
]
Temperature = Annotated[
    str | None,
    typer.Option(
        metavar="FLOAT",
        help="Randomness of the sampling, 0 is greedy; 0,0.7,1: each line with each. Default: the provider's own.",
    ),
]
Seed = Annotated[
    str | None,
    typer.Option(
        metavar="INTEGER",
        help="Seed of the sampling, to get the same texts again; 1..8: each line with each. Default: a random one.",
    ),
]
SweepFile = Annotated[
    str | None,
    typer.Option(
        "--sweep",
        metavar="FILE",
        help="YAML or JSON with lists of values by field: each line with each. Default: no sweep.",
    ),
]
Param = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="Any other field of the requests, such as top_p=0.9. May be repeated."),
]
Pass = Annotated[
    list[str] | None,
    typer.Option(
        "--pass",
        metavar="FIELD",
        help="Send this field of the lines though the profile does not list it. May be repeated.",
    ),
]
Column = Annotated[
    list[str] | None,
    typer.Option(
        "--column", metavar="FIELD", help="Do not send this field of the lines: carry it through. May be repeated."
    ),
]
System = Annotated[
    str | None, typer.Option(help="A system prompt for chats that have none. Default: no system prompt.")
]
Template = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="The prompt, made from the line's columns: 'Q: {question}\\nA:', or Jinja2 if it holds {{ or {%. "
        "Default: the line's own prompt.",
    ),
]
TemplateFile = Annotated[
    str | None, typer.Option(metavar="FILE", help="A file with such a template. Default: the line's own prompt.")
]
SystemTemplate = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="The system prompt, made in the same way, for chat. Default: that of --system."),
]
MessagesTemplate = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Chat messages in YAML or JSON, every text of which is a template. Default: the line's own messages.",
    ),
]
Chat = Annotated[bool, typer.Option("--chat", help="Use the chat endpoint. Default: the one that the line calls for.")]
Job = Annotated[bool, typer.Option("--job", help="Send each request as a Job: submit it, then fetch its result.")]
Input = Annotated[
    InputFormat,
    typer.Option(
        "--input-format", help="The input's format. With auto, name and first line decide; text is one prompt a line."
    ),
]
PromptColumn = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The column that holds the prompt or the messages; it stays a column. Default: prompt or messages.",
    ),
]
IdColumn = Annotated[
    str | None, typer.Option(metavar="NAME", help="The column that holds the id. Default: id, else the line's number.")
]
NoHeader = Annotated[
    bool,
    typer.Option("--no-header", help="Read CSV without names in its first row: they are column_1, column_2 and so on."),
]
Limit = Annotated[int | None, typer.Option(min=1, help="Read only the first so many prompts. Default: all of them.")]
Strict = Annotated[
    bool, typer.Option("--strict", help="Stop at the first bad line. Default: record it as failed, sample the others.")
]
Pack = Annotated[
    str,
    typer.Option(
        metavar="auto|off|K",
        autocompletion=lambda: ["auto", "off"],
        help="Prompts that share an API call: auto finds the best number, off is one, K is at most K.",
    ),
]
Provider = Annotated[
    str | None,
    typer.Option(
        autocompletion=_providers,
        help="The provider's profile, built in or yours. Default: BRIMFUL_PROVIDER, else by the key that is set.",
    ),
]


def read_options(given: Mapping[str, Any], workload: Workload = Workload.BATCH) -> ReadOptions:
    """The options by which ``run`` and ``validate`` read their input; ``given`` are their parameters by name.

    Fields of a request are defaults, which a line's own fields override. Raises UsageError.
    """
    from brimful.errors import UsageError
    from brimful.names import Mode
    from brimful.run.input.files.expand import expand
    from brimful.run.input.formats import ColumnNames
    from brimful.run.input.reader import ReadOptions
    from brimful.run.input.sources import Source
    from brimful.run.input.sweep.grid import make_sweep, parse_models, parse_numbers
    from brimful.run.input.templates.template import load_templates
    from brimful.run.options import parse_parameters
    from brimful.words.setting_faults import option

    if given["chat"] and given["job"]:
        raise UsageError("--chat and --job exclude each other: a Job is a completion")
    templates = load_templates(
        given["template"], given["template_file"], given["system_template"], given["messages_template"]
    )
    if templates is not None and templates.system is not None and given["system"] is not None:
        raise UsageError("--system and --system-template exclude each other: give one of them")
    if templates is not None and templates.asks and given["prompt_column"] is not None:
        raise UsageError("--prompt-column and a template exclude each other: write {COLUMN} in the template")
    if templates is not None and templates.messages is not None and given["job"]:
        raise UsageError("--messages-template and --job exclude each other: a Job is a completion")
    files, notes = expand(given["inputs"])
    fields = parse_parameters(given["param"] or [])
    if twice := [name for name in ("n", "model", *_NUMBERS) if name in fields and given[name] is not None]:
        raise UsageError(f"{option(twice[0])} and --param {twice[0]} set the same field: give one of them")
    fields |= {} if given["n"] is None else {"n": given["n"]}
    lists: dict[str, list[Any]] = {"model": parse_models(given["model"])}
    for name, kind in _NUMBERS.items():
        lists[name] = parse_numbers(option(name), given[name], kind)
    if (least := min(lists["max_tokens"], default=1)) < 1:
        raise UsageError(f"--max-tokens {least}: must be at least 1")
    fields |= {name: values[0] for name, values in lists.items() if len(values) == 1}
    sweep = make_sweep({name: values for name, values in lists.items() if len(values) > 1}, fields, given["sweep"])
    if "system" in sweep.fields and (given["system"] is not None or given["system_template"] is not None):
        raise UsageError("--system or --system-template, and several values of system to sweep: give one of them")
    return ReadOptions(
        sources=tuple(map(Source, files)),
        form=given["input_format"],
        header=not given["no_header"],
        names=ColumnNames(prompt=given["prompt_column"], id=given["id_column"]),
        notes=tuple(notes),
        defaults=fields,
        sweep=sweep,
        passed=tuple(given["passed"] or ()),
        columns=tuple(given["column"] or ()),
        mode=Mode.CHAT if given["chat"] else Mode.JOB if given["job"] else None,
        system=given["system"],
        templates=templates,
        workload=workload,
        limit=given["limit"],
    )
