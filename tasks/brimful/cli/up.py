"""``brimful up``: a whole fleet on this machine, in the foreground."""

from __future__ import annotations

import signal
import sys
import threading
import time
from typing import Annotated, Any

import typer

from brimful.config import Settings
from brimful.errors import UsageError
from brimful.runtime.extras import LocalFleet, local_fleet
from brimful.runtime.interrupt import KeyPresses
from brimful.state.probes import connect

_LOOK_S = 0.5


def up(
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes; else BRIMFUL_WORKERS.")] = None,
    flower_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Flower's port; 0 takes a free one.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The embedded Valkey's port; 0 takes a free one.")] = 0,
    rehearse: Annotated[bool, typer.Option("--rehearse", help="Against a mock gateway; costs nothing.")] = False,
) -> None:
    """Run a whole fleet until Ctrl-C: Redis (unless BRIMFUL_REDIS_URL is set), worker processes and Flower.

    Ctrl-C lets requests on the wire finish; a second one does not. Either way nothing is left running.
    """
    settings = Settings.load(workers=workers, flower_port=flower_port)
    if port and settings.redis_url and not rehearse:
        raise UsageError("--port is the embedded Valkey's, but BRIMFUL_REDIS_URL is set: leave out one of the two")
    fleet = local_fleet(settings, workers=settings.workers, flower=True, rehearse=rehearse, valkey_port=port)
    if settings.redis_url and not rehearse:
        connect(settings.redis_url).close()  # workers would wait for it without a word
    stop = _Stop()
    with stop:
        fleet.start()
        try:
            _tell(fleet, own_redis=settings.redis_url is None or rehearse)
            _until_ready(fleet, settings.workers, stop.asked)
            while not stop.asked.wait(_LOOK_S):
                fleet.check()
            _say("stopping: requests on the wire may finish; Ctrl-C again abandons them")
        finally:
            try:
                fleet.stop()
            except KeyboardInterrupt:
                _say("abandoned what was on the wire; its tasks are redelivered to the next worker")
    _say("stopped")


class _Stop:
    """SIGINT, SIGTERM and SIGHUP set ``asked``; the next one after that is a KeyboardInterrupt."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self._presses = KeyPresses()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._before[number] = signal.signal(number, self._on_signal)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, *_: object) -> None:
        if self._presses.is_new():
            if self.asked.is_set():
                raise KeyboardInterrupt
            self.asked.set()


def _tell(fleet: LocalFleet, *, own_redis: bool) -> None:
    if fleet.data_loss:
        _say(f"note: {fleet.data_loss}")
    if own_redis:
        print(f"export BRIMFUL_REDIS_URL={fleet.redis_url}", flush=True)
    if fleet.gateway_url:
        root = fleet.gateway_url.removesuffix("/v1")
        _say(f"mock gateway  {fleet.gateway_url}   (what it saw: curl {root}/ledger)")
    if fleet.flower_url and fleet.flower_login:
        user, password = fleet.flower_login
        _say(f"Flower            {fleet.flower_url}   user {user}, password {password}")
    where = "where that line was typed" if own_redis else "where BRIMFUL_REDIS_URL is the same"
    _say(f"enqueue, {where}:")
    _say("  brimful run prompts.jsonl -o rollouts.jsonl")
    _say("  python -c \"import brimful; print(brimful.sample.delay('The sky is', max_tokens=8).get())\"")


def _until_ready(fleet: LocalFleet, workers: int, asked: threading.Event) -> None:
    began = time.monotonic()
    while not asked.is_set():
        fleet.check()
        if fleet.ready_workers() >= workers:
            took = time.monotonic() - began
            _say(f"{workers} worker{'s' if workers > 1 else ''} ready after {took:.1f} s; Ctrl-C ends it all")
            return


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
