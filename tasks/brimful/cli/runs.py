"""``brimful runs list`` and ``brimful runs purge``: what runs have left in Redis, and its removal."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import redis
import typer

from brimful.cli.style import say
from brimful.config import Settings
from brimful.dispatch.purge import purge_run, stored_runs
from brimful.errors import UsageError
from brimful.names import of_fleet
from brimful.state.probes import connect, unreachable
from brimful.state.redis_url import sync_redis_client
from brimful.state.target import find_redis
from brimful.words.counted import counted

runs = typer.Typer(
    help="List what runs have left in Redis, or delete it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@runs.command("list")
def runs_list(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a run.")] = False) -> None:
    """List runs that have something in Redis: those under way, and those that were abandoned."""
    settings = Settings.load()
    target = find_redis(settings)
    try:
        with _bytes_client(target.url) as client:
            found = stored_runs(client)
    except (redis.RedisError, OSError) as error:
        raise unreachable(target.url, error) from None
    for each in found:
        shards, outcomes = counted(each.shards, "shard"), counted(each.outcomes, "outcome")
        text = f"{each.run}  {shards} without outcome, {outcomes} not collected"
        print(json.dumps(asdict(each)) if as_json else text)
    if not found:
        say("no run has anything in Redis")


@runs.command("purge")
def runs_purge(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="RUN", help="The runs, as `brimful runs list` shows them.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Delete all runs of this fleet.")] = False,
) -> None:
    """Delete all that a run has in Redis: its queued prompts, uncollected completions and its ledger.

    Workers stop what they have of it. A submitter that still runs notices, and sends its lines again: stop it first.
    """
    if bool(names) == everything:
        raise UsageError("name the runs to delete (`brimful runs list`), or use --all")
    settings = Settings.load()
    target = find_redis(settings)
    try:
        with _bytes_client(target.url) as client:
            known = [each.run for each in stored_runs(client)]
            mine = of_fleet(settings.fleet, "")
            wanted = [run for run in known if run.startswith(mine)] if everything else list(names or ())
            if unknown := [run for run in wanted if run not in known]:
                raise UsageError(f"no run {unknown[0]} in {target.shown}: `brimful runs list` shows them")
            for run in wanted:
                deleted = purge_run(client, run, settings.fleet)
                print(f"{run}  deleted, with {counted(deleted, 'queued task')}")
    except (redis.RedisError, OSError) as error:
        raise unreachable(target.url, error) from None


def _bytes_client(url: str) -> redis.Redis:
    connect(url).close()
    return sync_redis_client(url, decode_responses=False)
