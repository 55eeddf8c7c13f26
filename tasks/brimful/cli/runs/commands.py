"""The commands of ``brimful runs``: each finds its runs, asks or reads, and prints."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import redis
import typer

from brimful.cli.runs.asking import ask_all
from brimful.cli.runs.tail import lines, read_outcomes
from brimful.cli.runs.text import details, stored, table
from brimful.cli.style import say
from brimful.config import Settings
from brimful.dispatch.purge import StoredRun, has_submitter, purge_run, stored_run, stored_runs
from brimful.errors import UsageError
from brimful.names import fleet_in
from brimful.runtime.interrupt import unwinding
from brimful.state.probes import connect, unreachable
from brimful.state.redis_url import sync_redis_client
from brimful.state.runs.entry import Asked, RunEntry
from brimful.state.runs.registry import find_run, read_entries, read_entry, runs_named
from brimful.state.target import find_redis
from brimful.words.counted import counted

runs = typer.Typer(
    help="See, hold, resume, cancel and delete a fleet's runs, from any machine that reaches its Redis. BRIMFUL_FLEET "
    "names the fleet.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_Run = Annotated[
    str,
    typer.Argument(metavar="RUN", help="The run: its id or its batch's, or the beginning of one that no other has."),
]
_Runs = Annotated[
    list[str],
    typer.Argument(metavar="RUN", help="The runs: their ids, or the beginnings of ids that no other run has."),
]


@dataclass(frozen=True)
class _Place:
    """Two clients of the Redis, and how its runs are found."""

    client: redis.Redis
    """Answers with str."""
    raw: redis.Redis
    """Answers with bytes: keys of others may be no UTF-8."""
    shown: str
    fleet: str
    """Its runs may be named; those of other fleets are only listed."""

    def find(self, names: Sequence[str]) -> list[str]:
        """The ids of the fleet's runs that are named. Raises UsageError."""
        entries = read_entries(self.client)
        others: dict[str, list[str]] = {}  # runs without an entry, for names that do not mean exactly one with an entry
        if unclear := [name for name in names if len(runs_named(name, entries, fleet=self.fleet)[0]) != 1]:
            known = {entry.run for entry in entries}
            found = [run.run for run in stored_runs(self.raw) if run.run not in known]  # reads all keys' names
            others = dict.fromkeys(unclear, found)
        found = [find_run(name, entries, others.get(name, ()), self.shown, fleet=self.fleet) for name in names]
        return list(dict.fromkeys(found))


@contextlib.contextmanager
def _opened() -> Iterator[_Place]:
    """Connect to the Redis of the settings. Raises RedisUnreachable, also for what fails in the block."""
    settings = Settings.load()
    target = find_redis(settings)
    try:
        with connect(target.url) as client, sync_redis_client(target.url, decode_responses=False) as raw:
            yield _Place(client, raw, target.shown, settings.fleet)
    except BrokenPipeError:  # of what is printed
        raise
    except (redis.RedisError, OSError) as error:
        raise unreachable(target.url, error) from None


@runs.command("list")
def runs_list(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a run.")] = False) -> None:
    """List runs under way and those that have ended lately, with progress, rate, failures, and who started them where.

    A run that ended with everything asked for is listed for a day, others for a week. Maps of services, and runs of
    earlier releases, are listed while they have something in Redis. A batch of the front door is listed once its
    sampling has begun; while it waits for its turn, only the front door's page and `GET /v1/batches` show it. The runs
    of all fleets on the Redis are listed; before the id of a named fleet's run stands the fleet's name.
    """
    with _opened() as place:
        entries = read_entries(place.client)
        found = {run.run: run for run in stored_runs(place.raw)}
    others = [run for run in found.values() if run.run not in {entry.run for entry in entries}]
    if as_json:
        for entry in entries:
            print(json.dumps(_as_json(entry, found.get(entry.run, StoredRun(entry.run, 0, 0)))))
        for run in others:
            print(json.dumps(asdict(run)))
    elif entries or others:
        print(table(entries, others))
    if not found and not entries:
        say("Redis holds no runs")


@runs.command("show")
def runs_show(
    name: _Run, as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False
) -> None:
    """Show one run: its state, progress and failures, who started it where, and what it has in Redis."""
    with _opened() as place:
        (run,) = place.find([name])
        entry, left = read_entry(place.client, run), stored_run(place.raw, run)
    if as_json:
        print(json.dumps(asdict(left) if entry is None else _as_json(entry, left)))
    elif entry is None:
        print(f"{run}  no entry (maps and runs of earlier releases have none): {stored(left)}")
    else:
        print(details(entry, left))


@runs.command("hold")
def runs_hold(names: _Runs) -> None:
    """Make runs send nothing new until they are resumed. What has reached the provider ends, and is kept.

    What waits in queues and workers is taken back within seconds, so that other runs get the slots. A run that is
    stopped and started again by the same command is no longer held; a batch of the front door stays held.
    """
    _ask(names, Asked.HOLD)


@runs.command("resume")
def runs_resume(names: _Runs) -> None:
    """Resume held runs."""
    _ask(names, Asked.NOTHING)


@runs.command("cancel")
def runs_cancel(
    names: _Runs,
    now: Annotated[
        bool, typer.Option("--now", help="Do not wait for what has reached the provider, as Ctrl-C typed twice.")
    ] = False,
) -> None:
    """End runs as Ctrl-C at their terminals would: what is sampled is kept, and they exit with 130.

    What waits in queues and workers is withdrawn. The same command, typed again, continues such a run. A batch of the
    front door becomes cancelled.
    """
    _ask(names, Asked.CANCEL_NOW if now else Asked.CANCEL)


@runs.command("tail")
def runs_tail(
    name: _Run,
    text: Annotated[
        bool, typer.Option("--text", help="Print the sampled texts too, and the messages of failures.")
    ] = False,
) -> None:
    """Print a line for each prompt as its outcome arrives in Redis: its id, tokens and time. Ends with the run.

    An outcome leaves Redis once the run has written it down, so that a reader that is slower than the run misses some.
    """
    with _opened() as place, contextlib.suppress(KeyboardInterrupt), unwinding():
        (run,) = place.find([name])
        for results in read_outcomes(place.client, run):
            for line in (line for result in results for line in lines(result, text=text)):
                print(line, flush=True)
            if not results and not _live(place, entry := read_entry(place.client, run), run):
                say(f"run {run}: {entry.state_now if entry is not None else 'no command reports on it'}")
                return


@runs.command("purge")
def runs_purge(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="RUN", help="The runs, as `brimful runs list` shows them.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Delete all runs of this fleet that are not under way.")
    ] = False,
) -> None:
    """Delete all that a run has in Redis: its queued prompts, uncollected completions, its ledger and its entry.

    Workers stop what they have of it. A run under way is refused: cancel it first. One that was killed counts as lost
    after 15 s.
    """
    if bool(names) == everything:
        raise UsageError("name the runs to delete (`brimful runs list`), or use --all")
    with _opened() as place:
        if everything:
            wanted = [run.run for run in stored_runs(place.raw) if fleet_in(run.run) == place.fleet]
        else:
            wanted = place.find(names or ())
        live = [run for run in wanted if _live(place, read_entry(place.client, run), run)]
        if live and not everything:
            raise UsageError(f"run {live[0]} is under way: `brimful runs cancel {live[0]}` ends it")
        for run in wanted:
            if run in live:
                say(f"{run} is under way, and is not deleted")
                continue
            deleted = purge_run(place.raw, run)
            print(f"{run}  deleted, with {counted(deleted, 'queued task')}")


def _ask(names: Sequence[str], asked: Asked) -> None:
    with _opened() as place:
        code = ask_all(place.client, place.find(names), asked)
    raise typer.Exit(int(code))


def _live(place: _Place, entry: RunEntry | None, run: str) -> bool:
    return entry.live if entry is not None else has_submitter(place.raw, run)


def _as_json(entry: RunEntry, run: StoredRun) -> dict[str, Any]:
    return entry.as_json() | asdict(run)
