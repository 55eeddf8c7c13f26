"""``brimful run``: sample a file. Defines the options that ``brimful validate`` shares."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from brimful.run.input.reader import ReadOptions

_NUMBERS: dict[str, type[int] | type[float]] = {"max_tokens": int, "temperature": float, "seed": int}
Model = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The model, for lines that name none; a,b: each line with each of them."),
]
N = Annotated[int | None, typer.Option(help="Rollouts of each prompt.")]
MaxTokens = Annotated[
    str | None, typer.Option(metavar="INTEGER", help="Tokens of one rollout at most; 16,64: each line with each.")
]
Temperature = Annotated[
    str | None,
    typer.Option(metavar="FLOAT", help="0 is greedy; 0,0.7,1: each line with each; default: the provider's own."),
]
Seed = Annotated[
    str | None,
    typer.Option(
        metavar="INTEGER", help="Seed of the sampling, to get the same texts again; 1..8: each line with each."
    ),
]
SweepFile = Annotated[
    str | None,
    typer.Option("--sweep", metavar="FILE", help="YAML or JSON with lists of values by field: each line with each."),
]
Param = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Any other field, such as top_p=0.9.")]
Pass = Annotated[
    list[str] | None,
    typer.Option("--pass", metavar="FIELD", help="Send this field of the lines though the profile does not list it."),
]
Column = Annotated[
    list[str] | None,
    typer.Option("--column", metavar="FIELD", help="Do not send this field of the lines: carry it through."),
]
System = Annotated[str | None, typer.Option(help="System prompt, for chat.")]
Template = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="The prompt, made from the line's columns: 'Q: {question}\\nA:', or Jinja2 if it holds {{ or {%.",
    ),
]
TemplateFile = Annotated[str | None, typer.Option(metavar="FILE", help="A file with such a template.")]
SystemTemplate = Annotated[
    str | None, typer.Option(metavar="TEXT", help="The system prompt, made in the same way, for chat.")
]
MessagesTemplate = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Chat messages in YAML or JSON, every text of which is a template."),
]
Chat = Annotated[bool, typer.Option("--chat", help="Use the chat endpoint.")]
Job = Annotated[bool, typer.Option("--job", help="Send each request as a Job: submit it, then fetch the result.")]
InputFormat = Annotated[
    str, typer.Option(help="auto, jsonl, json, text (one prompt a line), csv, tsv, parquet or arrow.")
]
PromptColumn = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The column that holds the prompt or the messages; it stays a column."),
]
IdColumn = Annotated[str | None, typer.Option(metavar="NAME", help="The column that holds the id.")]
NoHeader = Annotated[
    bool, typer.Option("--no-header", help="CSV without names in its first row: they are column_1, column_2, …")
]
Limit = Annotated[int | None, typer.Option(min=1, help="Read only the first N requests.")]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at the first bad line.")]
Pack = Annotated[str, typer.Option(help="Prompts that share a request: auto, off or a number.")]
Provider = Annotated[
    str | None,
    typer.Option(help="Provider profile, built-in or yours; default: by the key that is set."),
]


def run(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT…",
            help="JSON lines or arrays, OpenAI Batch lines, text, CSV, Parquet or Arrow, also .gz and .zst; a folder "
            "of them, or a quoted pattern; - is stdin.",
        ),
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", metavar="OUT", help="Where rollouts go: .jsonl, .csv, .tsv or .parquet; - is stdout."
        ),
    ],
    model: Model = None,
    n: N = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = None,
    sweep: SweepFile = None,
    param: Param = None,
    passed: Pass = None,
    column: Column = None,
    system: System = None,
    template: Template = None,
    template_file: TemplateFile = None,
    system_template: SystemTemplate = None,
    messages_template: MessagesTemplate = None,
    chat: Chat = False,
    job: Job = False,
    input_format: InputFormat = "auto",
    prompt_column: PromptColumn = None,
    id_column: IdColumn = None,
    no_header: NoHeader = False,
    limit: Limit = None,
    strict: Strict = False,
    form: Annotated[str, typer.Option("--format", help="rollouts (one a line) or openai-batch.")] = "rollouts",
    order: Annotated[str, typer.Option(help="Order of the output: completion or input.")] = "completion",
    keep: Annotated[
        str,
        typer.Option(metavar="COLUMNS", help="Columns that the output repeats: all, none, or names (a,b,prompt)."),
    ] = "all",
    retry_errors: Annotated[
        bool, typer.Option("--retry-errors", help="Sample only the requests that failed before.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over; the old files are renamed.")] = False,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Go on even if all first requests are refused in the same words.")
    ] = False,
    budget_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens that the whole run may use.")] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            min=0.0001, help="Money that the whole run may cost, by the prices of BRIMFUL_PRICES or the profile."
        ),
    ] = None,
    pack: Pack = "auto",
    workload: Annotated[str, typer.Option(help="batch, or interactive, which is served before batch.")] = "batch",
    weight: Annotated[
        float | None, typer.Option(help="Share beside other runs: 3 gets three times as much as 1, the default.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes of a fleet on this machine.")] = None,
    provider: Provider = None,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Accept only JSON texts that fit a JSON Schema's file, or a pydantic module:Model.",
        ),
    ] = None,
    hook: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION", help="Call it with each rollout: it adds columns, or asks for another sample."
        ),
    ] = None,
    tries: Annotated[
        int | None, typer.Option(min=1, help="Samples of a rollout until --schema and --hook accept one; default 3.")
    ] = None,
    hook_workers: Annotated[int | None, typer.Option(min=1, help="Calls of the hook at once; default 8.")] = None,
    hook_timeout: Annotated[
        float | None, typer.Option(min=0.001, help="Seconds that one call of the hook may take; default 60.")
    ] = None,
    keep_rejected: Annotated[
        bool, typer.Option("--keep-rejected", help="Keep the texts of rejected rollouts, in OUT.rejected.jsonl.")
    ] = False,
    rehearse: Annotated[bool, typer.Option("--rehearse", help="Use the mock gateway; needs no key.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="Show no progress, only messages.")] = False,
) -> None:
    """Sample a file of prompts. The same command, typed again, continues where it stopped.

    It uses the fleet at BRIMFUL_REDIS_URL; where that is not set, it starts a fleet on this machine.

    Exits 0 when everything is sampled, 3 when some requests failed (OUT.errors.jsonl), 2 for bad input or settings, 4
    when the budget is used up, 5 when the key is refused, 130 when interrupted.
    """
    given = dict(locals())
    from brimful.config import Settings
    from brimful.packing.units import parse_pack
    from brimful.run.checks.options import load_checks
    from brimful.run.input.columns import Keep
    from brimful.run.launch import DisplayOptions, run_to_end
    from brimful.run.options import RunOptions, parse_choice
    from brimful.run.output.paths import Order, OutputFormat

    options = RunOptions(
        read=read_options(given, workload),
        output=output,
        form=parse_choice(OutputFormat, "--format", form),
        order=parse_choice(Order, "--order", order),
        keep=Keep.parse(keep),
        pack=parse_pack(pack),
        strict=strict,
        retry_errors=retry_errors,
        fresh=fresh,
        keep_going=keep_going,
        budget_tokens=budget_tokens,
        budget=budget,
        workers=workers,
        rehearse=rehearse,
        checks=load_checks(
            schema, hook, tries=tries, workers=hook_workers, timeout_s=hook_timeout, keep_rejected=keep_rejected
        ),
    )
    settings = Settings.load(provider=provider, workers=workers, weight=weight)
    if rehearse:
        settings = settings.without_guess()
    display = DisplayOptions(json=json, progress=not no_progress, command=("brimful", *sys.argv[1:]))
    raise typer.Exit(int(run_to_end(options, settings, display)))


def read_options(given: Mapping[str, Any], workload: str = "batch") -> ReadOptions:
    """The options by which ``run`` and ``validate`` read their input; ``given`` are their parameters by name.

    Fields of a request are defaults, which a line's own fields override. Raises UsageError.
    """
    from brimful.errors import UsageError
    from brimful.names import Mode, Workload
    from brimful.run.input.files.expand import expand
    from brimful.run.input.formats import ColumnNames, InputFormat
    from brimful.run.input.reader import ReadOptions
    from brimful.run.input.sources import Source
    from brimful.run.input.sweep.grid import make_sweep, parse_models, parse_numbers
    from brimful.run.input.templates.template import load_templates
    from brimful.run.options import parse_choice, parse_parameters

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
    fields = {**parse_parameters(given["param"] or []), **({} if given["n"] is None else {"n": given["n"]})}
    lists: dict[str, list[Any]] = {"model": parse_models(given["model"])}
    for name, kind in _NUMBERS.items():
        lists[name] = parse_numbers(f"--{name.replace('_', '-')}", given[name], kind)
    fields |= {name: values[0] for name, values in lists.items() if len(values) == 1}
    sweep = make_sweep({name: values for name, values in lists.items() if len(values) > 1}, fields, given["sweep"])
    if "system" in sweep.fields and (given["system"] is not None or given["system_template"] is not None):
        raise UsageError("--system and --system-template exclude a sweep of system: give one of them")
    return ReadOptions(
        sources=tuple(map(Source, files)),
        form=parse_choice(InputFormat, "--input-format", given["input_format"]),
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
        workload=parse_choice(Workload, "--workload", workload),
        limit=given["limit"],
    )
