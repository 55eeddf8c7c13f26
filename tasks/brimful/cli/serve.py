"""``brimful serve``: the front door, an OpenAI-compatible HTTP server within the key's limits; its callers' tokens."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import redis
import typer

from brimful.cli.style import say
from brimful.config import Settings
from brimful.errors import UsageError
from brimful.runtime.extras import worker_module
from brimful.state.callers.tokens import (
    KINDS,
    REQUESTS,
    TOKENS,
    CallerRecord,
    add_caller,
    change_caller,
    list_callers,
    read_usage,
    revoke_caller,
)
from brimful.state.probes import connect, unreachable
from brimful.state.target import find_redis
from brimful.words.counted import counted

serve = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
token = typer.Typer(
    help="Add, list and revoke the tokens of the front door's callers.", no_args_is_help=True, rich_markup_mode=None
)
serve.add_typer(token, name="token")

_Json = Annotated[bool, typer.Option("--json", help="Print JSON: one object a line.")]
_BUDGET = "The most tokens that it may use in all; 0 = no such limit."
_WEIGHT = "Its share where callers wait: twice the weight, twice the requests."
_STARTS = "The most requests in any minute; more are refused with 429. 0 = no such limit."
_SLOTS = "The most requests at once; more wait. 0 = no such limit."
_MINUTE = "The most tokens of requests in any minute; more are refused with 429. 0 = no such limit."
_UNCHANGED = "Default: unchanged."
_Name = Annotated[str, typer.Argument(metavar="NAME", help="The caller's name.")]


@serve.callback(invoke_without_command=True)
def _serve(
    context: typer.Context,
    host: Annotated[
        str, typer.Option(help="Address to listen on; one that others can reach needs tokens.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder of files and batches. Default: BRIMFUL_SERVE_DATA, else in the state directory.",
        ),
    ] = None,
) -> None:
    """Serve OpenAI's API until SIGTERM or Ctrl-C. It prints its base URL as the only line on stdout.

    It needs BRIMFUL_REDIS_URL, the API key and the provider's URL, like a worker, and keeps within the key's limits
    together with all workers. On SIGTERM or Ctrl-C the requests on the wire are answered; a second one abandons them.
    """
    if context.invoked_subcommand is not None:
        return
    server = worker_module("serve.server", "the front door")
    server.serve(Settings.load(serve_data=data), host=host, port=port, ready=_describe)


@token.command("add")
def token_add(
    name: _Name,
    weight: Annotated[float, typer.Option(min=0.01, max=1000, help=_WEIGHT)] = 1.0,
    starts: Annotated[int, typer.Option(min=0, help=_STARTS)] = 0,
    slots: Annotated[int, typer.Option(min=0, help=_SLOTS)] = 0,
    tokens_per_minute: Annotated[int, typer.Option(min=0, help=_MINUTE)] = 0,
    budget_tokens: Annotated[int, typer.Option(min=0, help=_BUDGET)] = 0,
    as_json: _Json = False,
) -> None:
    """Make a caller's token and print it, this once: Redis keeps only its hash.

    It is valid within a second at all front doors of the fleet. With the first one, all callers need a token.
    """
    with _redis() as (client, fleet):
        made = add_caller(
            client,
            fleet,
            name,
            budget_tokens=budget_tokens,
            weight=weight,
            starts=starts,
            slots=slots,
            tokens_per_minute=tokens_per_minute,
        )
    print(json.dumps({"name": name, "token": made}) if as_json else made)
    say(f"{name} sends it as `Authorization: Bearer TOKEN`: OpenAI's clients do, as OPENAI_API_KEY")


@token.command("list")
def token_list(as_json: _Json = False) -> None:
    """List the callers that have a token, since when, and what they have used."""
    with _redis() as (client, fleet):
        found, usage = list_callers(client, fleet), read_usage(client, fleet)
    for name, each in found.items():
        if each is None:
            say(f"{name}: its record was written by a later brimful, or is damaged; it admits nobody here")
            continue
        created = datetime.fromtimestamp(each.created, UTC).isoformat(timespec="seconds")
        used = usage.get(each.name, dict.fromkeys(KINDS, 0))
        if as_json:
            print(json.dumps({"name": each.name, "created": created, **_settings(each), **used}))
        else:
            rate = f", {counted(each.slots, 'slot')}" if each.slots else ""
            rate += f", {each.starts:,} a minute" if each.starts else ""
            rate += f", {counted(each.tokens_per_minute, 'token')} a minute" if each.tokens_per_minute else ""
            of = f" of {each.budget_tokens:,}" if each.budget_tokens else ""
            counts = f"{counted(used[REQUESTS], 'request')}, {used[TOKENS]:,}{of} tokens"
            print(f"{each.name:24}  {created}  weight {each.weight:g}{rate}: {counts}")
    if not found:
        say("no caller has a token: `brimful serve token add NAME` makes one")


@token.command("set")
def token_set(
    name: _Name,
    weight: Annotated[float | None, typer.Option(min=0.01, max=1000, help=f"{_WEIGHT} {_UNCHANGED}")] = None,
    starts: Annotated[int | None, typer.Option(min=0, help=f"{_STARTS} {_UNCHANGED}")] = None,
    slots: Annotated[int | None, typer.Option(min=0, help=f"{_SLOTS} {_UNCHANGED}")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(min=0, help=f"{_MINUTE} {_UNCHANGED}")] = None,
    budget_tokens: Annotated[int | None, typer.Option(min=0, help=f"{_BUDGET} {_UNCHANGED}")] = None,
    as_json: _Json = False,
) -> None:
    """Change a caller's weight or limits; its token stays, and what it has used counts."""
    if weight is starts is slots is tokens_per_minute is budget_tokens is None:
        raise UsageError("nothing to set: give --weight, --starts, --slots, --tokens-per-minute or --budget-tokens")
    with _redis() as (client, fleet):
        record = change_caller(
            client,
            fleet,
            name,
            budget_tokens=budget_tokens,
            weight=weight,
            starts=starts,
            slots=slots,
            tokens_per_minute=tokens_per_minute,
        )
    shown = {"name": name, **_settings(record)}
    print(json.dumps(shown) if as_json else f"{name}  set")


@token.command("revoke")
def token_revoke(name: _Name, as_json: _Json = False) -> None:
    """Revoke a caller's token: within a second no front door takes a request with it. Those under way go on."""
    with _redis() as (client, fleet):
        revoke_caller(client, fleet, name)
    print(json.dumps({"name": name, "revoked": True}) if as_json else f"{name}  revoked")


def _settings(record: CallerRecord) -> dict[str, float | None]:
    """None: no such limit."""
    limits = ("starts", "slots", "tokens_per_minute", "budget_tokens")
    return {"weight": record.weight, **{limit: getattr(record, limit) or None for limit in limits}}


@contextmanager
def _redis() -> Iterator[tuple[redis.Redis, str]]:
    """A client, and the fleet's name."""
    target = find_redis(settings := Settings.load())
    with connect(target.url) as client:
        try:
            yield client, settings.fleet
        except (redis.RedisError, OSError) as error:
            raise unreachable(target.url, error) from None


def _describe(url: str) -> None:
    print(url, flush=True)
    print(
        f"The front door listens. In another terminal:\n"
        f"  export OPENAI_BASE_URL={url} OPENAI_API_KEY=any    # or a token, once there are some\n"
        f"Any OpenAI client then samples within the key's limits. Ctrl-C stops it.",
        file=sys.stderr,
        flush=True,
    )
