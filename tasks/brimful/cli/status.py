"""``brimful status``: what the fleet is doing right now."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import Annotated, Any

import redis
import typer

from brimful.cli.style import coloured, paint
from brimful.config import Settings
from brimful.names import QUEUES
from brimful.runtime.interrupt import unwinding
from brimful.state.broker_queues import Queues, read_queues
from brimful.state.probes import connect, unreachable
from brimful.state.status import Status, known_tags, read_status
from brimful.state.target import RedisTarget, find_redis, find_tag

_EVERY_S = 1.0
_BAR = 30


def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look again every second, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a look.")] = False,
    tag: Annotated[
        str | None, typer.Option(help="Which key, where several share a Redis: its tag's beginning.")
    ] = None,
) -> None:
    """Show slots, starts in the window, pauses, what waits, queues and workers.

    It needs BRIMFUL_REDIS_URL and nothing else, or a fleet that runs on this machine; never the API key.
    """
    settings = Settings.load()
    place = find_redis(settings)
    with connect(place.url) as client, contextlib.suppress(KeyboardInterrupt), unwinding():
        while True:
            try:
                text = _look(place, client, settings, tag, as_json=as_json, clear=watch)
            except (redis.RedisError, OSError) as error:
                if not watch:
                    raise unreachable(place.url, error) from None
                print(f"brimful: {unreachable(place.url, error)}; looking again", file=sys.stderr, flush=True)
            else:
                print(text, flush=True)
            if not watch:
                return
            time.sleep(_EVERY_S)


def _look(
    place: RedisTarget, client: redis.Redis, settings: Settings, tag: str | None, *, as_json: bool, clear: bool
) -> str:
    looks = [(read_status(client, one), read_queues(client)) for one in _tags(place, client, settings, tag)]
    if as_json:
        return json.dumps(_as_dict(place, looks))
    text = "\n\n".join(render(status, queues) for status, queues in looks)
    return _cleared(text) if clear else text


def _tags(place: RedisTarget, client: redis.Redis, settings: Settings, wanted: str | None) -> list[str]:
    """All keys' without a choice: a look costs nothing."""
    if wanted is None and len(tags := known_tags(client)) > 1:
        return tags
    return [find_tag(place, client, settings, wanted)]


def _as_dict(place: RedisTarget, looks: list[tuple[Status, Queues]]) -> dict[str, Any]:
    keys = [status.to_dict() for status, _ in looks]
    queues = looks[0][1]
    first = keys[0]
    more = {"keys": keys} if len(keys) > 1 else {}
    return {**first, "redis": place.shown, "queues": queues.lengths, "unacked": queues.unacked, **more}


def render(status: Status, queues: Queues) -> str:
    """As text of some ten lines."""
    lines = [_head(status)]
    if status.slots is None:
        lines.append("limits     no worker has brought limits yet")
    else:
        slots = f", of which {status.cooling} rest after an abort" if status.cooling else ""
        lines.append(_bar("slots", status.slots_used, status.slots, slots))
        lines.append(_bar("starts", status.starts_used, status.starts, f" in {status.window_s:g} s"))
    if status.tokens:
        lines.append(_bar("tokens", status.tokens_used, status.tokens, f" in {status.window_s:g} s"))
    if status.budget:
        lines.append(_bar("budget", status.budget_spent, status.budget, " tokens spent"))
    lines.append("waiting    " + ", ".join(f"{name} {count}" for name, count in status.waiting.items()))
    lengths = ", ".join(f"{name} {queues.lengths[name]}" for name in QUEUES)
    lines.append(f"queues     {lengths}; in workers' hands {queues.unacked}")
    if status.overridden:
        lines.append(
            f"limits     set by hand: {', '.join(f'{name}={status.limits[name]:g}' for name in status.overridden)}"
        )
    lines.append(f"workers    {len(status.workers) or 'none'}")
    width = max((len(worker.name) for worker in status.workers), default=0)
    for worker in status.workers:
        waits = worker.interactive + worker.batch
        heard = f", silent for {worker.heard_s:.0f} s" if worker.heard_s > 5 else ""
        lines.append(f"  {worker.name:{width}}  holds {worker.held}, waits {waits}{heard}")
    return "\n".join(lines)


def _head(status: Status) -> str:
    name = f"key {status.tag}"
    if status.epoch is None:
        return f"{name}  no worker has used it here yet"
    if status.rebuilding:
        return f"{name}  {paint('rebuilding', 'yellow')}: Redis lost its memory; nothing starts until workers report"
    if status.pause_s > 0:
        reason = status.pause_reason or "no reason was given"
        return f"{name}  {paint('paused', 'yellow')} for {status.pause_s:.1f} s: {reason}"
    if status.circuit_breaker != "closed":
        breaker = paint(f"circuit breaker {status.circuit_breaker}", "red")
        return f"{name}  {breaker} after {status.failures} failures in a row"
    return f"{name}  {paint('running', 'green')}"


def _bar(name: str, used: int, most: int | None, more: str = "") -> str:
    if not most:
        return f"{name:10} {used} (no limit)"
    full = min(_BAR, round(_BAR * used / most))
    mark, space = ("█", "░") if (sys.stdout.encoding or "").lower().startswith("utf") else ("#", ".")
    return f"{name:10} {mark * full}{space * (_BAR - full)} {used}/{most}{more}"


def _cleared(text: str) -> str:
    """On a terminal each look takes the last one's place."""
    return f"\x1b[H\x1b[2J{text}" if coloured() else f"{text}\n"
