"""``brimful status``: what the fleet is doing at this moment."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Container, Sequence
from typing import Annotated, Any, NamedTuple

import redis
import typer

from brimful.addresses import FleetAddress
from brimful.cli.style import ago, coloured, paint, say
from brimful.config import Settings
from brimful.errors import RedisUnreachable, UsageError
from brimful.limits import REBUILDING, learnt_lines, lease_of, set_by_hand
from brimful.names import QUEUES, fleet_in, is_front_door
from brimful.runtime.interrupt import unwinding
from brimful.state.broker_queues import Queues, read_queues
from brimful.state.fleets import fleet_of, registered_tags
from brimful.state.probes import connect, unreachable
from brimful.state.provider_health import ProviderHealth, ProviderState
from brimful.state.runs.entry import RunEntry, RunState
from brimful.state.runs.registry import read_entries
from brimful.state.status import Status, known_tags, read_status
from brimful.state.target import RedisTarget, find_redis, find_tag
from brimful.words.counted import counted

_EVERY_S = 1.0
_FAR_MS = 5
_BAR = 30
_STOPPED = {
    ProviderState.KEY_REFUSED.value: "key refused: every request fails until the key is replaced",
    ProviderState.QUOTA.value: "quota at its end: every request fails until it is raised",
}


def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat every second until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON objects, one a line.")] = False,
    tag: Annotated[
        str | None,
        typer.Option(
            help="The API key, where several share a Redis: its tag or its beginning. Default: all that are in use."
        ),
    ] = None,
) -> None:
    """Show slots, starts in the window, pauses, waiting requests, queues and workers.

    It reads the Redis at BRIMFUL_REDIS_URL, or of a fleet on this machine. It needs no API key.
    """
    settings = Settings.load()
    target = find_redis(settings)
    with connect(target.url) as client, contextlib.suppress(KeyboardInterrupt), unwinding():
        while True:
            try:
                looks = []
                for one in _tags(target, client, settings, tag):
                    fleet = fleet_of(client, one, settings.fleet)
                    looks.append(_Look.take(client, one, FleetAddress(target.url, fleet, settings.broker_url)))
            except (RedisUnreachable, redis.RedisError, OSError) as error:
                away = error if isinstance(error, RedisUnreachable) else unreachable(target.url, error)
                if not watch:
                    raise away from None
                say(f"{away}; trying again")
            else:
                if as_json:
                    text = json.dumps(_as_dict(target, looks))
                else:
                    text = _texts(looks, registered_tags(client))
                    if watch:  # on a terminal, each replaces the one before
                        text = f"\x1b[H\x1b[2J{text}" if coloured() else f"{text}\n"
                print(text, flush=True)
            if not watch:
                return
            time.sleep(_EVERY_S)


def _tags(target: RedisTarget, client: redis.Redis, settings: Settings, wanted: str | None) -> list[str]:
    """The key that other commands would choose is the first."""
    tags = known_tags(client)
    if wanted is not None or len(tags) <= 1:
        return [find_tag(target, client, settings, wanted, tags=tags)]
    with contextlib.suppress(UsageError):  # none of them is this fleet's
        first = find_tag(target, client, settings, tags=tags)
        return sorted(tags, key=lambda tag: tag != first)
    return tags


class _Look(NamedTuple):
    """What is shown of one key."""

    status: Status
    queues: Queues
    held: list[RunEntry]
    """Runs of its fleet that are held."""

    @classmethod
    def take(cls, client: redis.Redis, tag: str, address: FleetAddress) -> _Look:
        mine = [entry for entry in read_entries(client, live=True) if fleet_in(entry.run) == address.fleet]
        held = [entry for entry in mine if entry.state == RunState.HELD]
        return cls(read_status(client, tag), read_queues(client, address), held)


def _texts(looks: list[_Look], registered: Container[str]) -> str:
    """Each key's status. Of several keys, one that nothing uses and no fleet has is only named."""
    used = [look for look in looks if _in_use(look.status) or look.status.tag in registered] or looks
    text = "\n\n".join(render(*look) for look in used)
    if idle := [look.status.tag for look in looks if look not in used]:
        text += f"\n\nnot in use now: {', '.join(idle)} (--tag shows one)"
    return text


def _in_use(status: Status) -> bool:
    heard = any(worker.heard_s < 2 * lease_of(status.limits) for worker in status.workers)
    return heard or bool(status.slots_used) or any(status.waiting.values())


def _as_dict(target: RedisTarget, looks: list[_Look]) -> dict[str, Any]:
    """The first key's status at the top level, and with several keys all of them under ``keys``."""
    keys = [look.status.to_dict() for look in looks]
    queues = looks[0].queues
    more: dict[str, Any] = {"keys": keys} if len(keys) > 1 else {}
    more["held"] = list({entry.run: None for look in looks for entry in look.held})
    return {**keys[0], "redis": target.shown, "queues": queues.lengths, "unacked": queues.unacked, **more}


def render(status: Status, queues: Queues, held: Sequence[RunEntry] = ()) -> str:
    """One key's status as about ten lines of text."""
    lines = [_headline(status)]
    if status.slots is None:
        lines.append("limits     no worker has brought limits yet")
    else:
        cooling = f", of which {status.cooling} cool down" if status.cooling else ""
        learning = ", learnt as they are used" if status.limits.get("slots_auto") else ""
        lines.append(_bar("slots", status.slots_used, status.slots, cooling + learning))
        next_start = f"; next start in {status.next_start_s:.1f} s" if status.next_start_s > 0 else ""
        lines.append(_bar("starts", status.starts_used, status.starts, f" in {status.window_s:g} s{next_start}"))
    if status.tokens:
        lines.append(_bar("tokens", status.tokens_used, status.tokens, f" in {status.window_s:g} s"))
    if status.budget:
        lines.append(_bar("budget", status.budget_spent, status.budget, " tokens spent"))
    if status.provider is not None:
        lines.append(f"provider   {_provider(status.provider)}")
    lines.append("waiting    " + ", ".join(f"{name} {count}" for name, count in status.waiting.items()))
    lengths = ", ".join(f"{name} {queues.lengths[name]}" for name in QUEUES)
    lines.append(f"queues     {lengths}{queues.delivered()}")
    for entry in held:
        by = f" by {entry.asked_by}" if entry.asked_by else ""
        lines.append(f"{'held':10} {paint(f'run {entry.run}{by}', 'yellow')} (`brimful runs resume`)")
    if status.overridden:
        by_hand = (f"{name} {value}" for name, value in set_by_hand(status.limits, status.overridden).items())
        lines.append(f"limits     set by hand: {', '.join(by_hand)}")
    lines.extend(f"{'learnt':10} {paint(line, 'yellow')}" for line in learnt_lines(status.learnt, status.limits))
    if (late := status.late_answers()) is not None:
        cause, cost = late
        lines.append(f"{cause:10} {paint(cost, 'yellow')}")
    lines.append(f"workers    {_processes(status)}")
    width = max((len(worker.name) for worker in status.workers), default=0)
    for worker in status.workers:
        waiting = worker.interactive + worker.batch
        silent = f", silent for {worker.heard_s:.0f} s" if worker.heard_s > lease_of(status.limits) else ""
        away = f", Redis answers in {worker.rtt_ms} ms" if worker.rtt_ms >= _FAR_MS else ""
        lines.append(f"  {worker.name:{width}}  holds {worker.held}, waiting {waiting}{away}{silent}")
    return "\n".join(lines)


def _processes(status: Status) -> str:
    """How many workers there are, and what else takes slots of the key."""
    doors = sum(is_front_door(process.name) for process in status.workers)
    programs = sum(process.fleet is None for process in status.workers)
    more = [counted(count, noun) for count, noun in ((doors, "front door"), (programs, "program")) if count]
    return ", and ".join([str(len(status.workers) - doors - programs or "none"), *more])


def _provider(health: ProviderHealth) -> str:
    """Its state, since when, and what it said last, if that was no success."""
    now = time.time()
    if health.state == ProviderState.OK:
        return f"ok, {ago(now - health.at)}"
    colour = "red" if health.state in (ProviderState.KEY_REFUSED, ProviderState.QUOTA) else "yellow"
    ok = health.last.get(ProviderState.OK)
    before = f"; last success {ago(now - ok)}" if ok is not None else ""
    state = paint(health.state.replace("_", " "), colour)
    return f"{state} since {ago(now - health.since)}, last {ago(now - health.at)}: {health.message}{before}"


def _headline(status: Status) -> str:
    key = f"key {status.tag}"
    if status.epoch is None:
        return f"{key}  no worker has used it here yet"
    if status.rebuilding:
        state = paint("rebuilding", "yellow")
        return f"{key}  {state}: {REBUILDING}"
    if status.provider is not None and (why := _STOPPED.get(status.provider.state)):
        return f"{key}  {paint(why, 'red')}"
    if status.pause_s > 0:
        reason = status.pause_reason or "no reason was given"
        return f"{key}  {paint('paused', 'yellow')} for {status.pause_s:.1f} s: {reason}"
    if status.circuit_breaker != "closed":
        state = paint(f"circuit breaker {status.circuit_breaker}", "red")
        return f"{key}  {state} after {counted(status.failures, 'failure')} in a row"
    return f"{key}  {paint('running', 'green')}"


def _bar(name: str, used: int, most: int | None, more: str = "") -> str:
    if not most:
        return f"{name:10} {used} (no limit)"
    full = min(_BAR, round(_BAR * used / most))
    return f"{name:10} {'█' * full}{'░' * (_BAR - full)} {used}/{most}{more}"
