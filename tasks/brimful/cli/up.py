"""``brimful up``: a whole fleet on this machine, in the foreground."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from typing import Annotated, Any

import typer

from brimful.config import Settings
from brimful.errors import RedisUnreachable, RedisUnusable, UsageError
from brimful.runtime.extras import LocalFleet, local_fleet
from brimful.runtime.interrupt import KeyPresses, stop_signals
from brimful.state.fleets import take_fleet_over
from brimful.state.probes import check_servers, unreachable
from brimful.state.redis_retry import REDIS_ERRORS
from brimful.state.redis_url import required
from brimful.words.counted import counted

_LOOK_S = 0.5
_AWAY = "Waiting until it answers; Ctrl-C ends the wait"


def up(
    workers: Annotated[
        int | None, typer.Option(min=1, help="Worker processes. Default: BRIMFUL_WORKERS, else 4.")
    ] = None,
    flower_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Flower's port; 0 takes a free one. Default: BRIMFUL_FLOWER_PORT, else 0."),
    ] = None,
    serve_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Run a front door on this port; 0 takes a free one. Default: none."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The embedded Valkey's port; 0 takes a free one.")] = 0,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Take the fleet at BRIMFUL_REDIS_URL over from another API key.")
    ] = False,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Use a mock gateway in place of the provider; needs no key.")
    ] = False,
) -> None:
    """Run a whole fleet until Ctrl-C: Redis (unless BRIMFUL_REDIS_URL is set), worker processes and Flower.

    Ctrl-C lets the requests on the wire finish; a second Ctrl-C abandons them. Either way no process is left running.
    While the Redis at BRIMFUL_REDIS_URL does not answer, it says so and waits.
    """
    settings = Settings.load(typed=True, workers=workers, flower_port=flower_port)
    own_redis = settings.redis_url is None or rehearse
    if port and not own_redis:
        raise UsageError("--port is for the embedded Valkey, but BRIMFUL_REDIS_URL is set: use one of the two")
    fleet = local_fleet(
        settings,
        workers=settings.workers,
        flower=True,
        rehearse=rehearse,
        serve_port=serve_port,
        valkey_port=port,
        keep_logs=not rehearse,
    )
    fleet.check_settings()
    with _StopSignal() as stop:
        if not own_redis:
            _wait_for_redis(settings, take_over, stop)
        if stop.asked:
            return
        fleet.start()
        try:
            _describe(fleet, own_redis=own_redis)
            _wait_until_ready(fleet, settings.workers, stop)
            while not stop.wait(_LOOK_S):
                fleet.check()
            _say("stopping: requests on the wire may finish; Ctrl-C again abandons them")
        finally:
            try:
                fleet.stop()
            except KeyboardInterrupt:
                _say("abandoned the requests on the wire; their tasks are redelivered to the next worker")
    _say("stopped")


class _StopSignal:
    """The first of :func:`stop_signals` sets ``asked``; the next one raises KeyboardInterrupt.

    The handler wakes ``wait`` by a pipe. A threading.Event would not do: its lock is held while a handler may run.
    """

    def __init__(self) -> None:
        self.asked = False
        self._presses = KeyPresses()
        self._read_fd, self._write_fd = os.pipe()
        self._before: dict[int, Any] = {}

    def wait(self, seconds: float) -> bool:
        """Returns ``asked``, after at most ``seconds``."""
        select.select([self._read_fd], [], [], seconds)
        return self.asked

    def __enter__(self) -> _StopSignal:
        for number in stop_signals():
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._read_fd)
        os.close(self._write_fd)

    def _on_signal(self, *_: object) -> None:
        if self._presses.is_new():
            if self.asked:
                raise KeyboardInterrupt
            self.asked = True
            os.write(self._write_fd, b"\0")


def _describe(fleet: LocalFleet, *, own_redis: bool) -> None:
    if fleet.data_loss:
        _say(f"note: {fleet.data_loss}")
    if own_redis:
        print(f"export BRIMFUL_REDIS_URL={fleet.redis_url}", flush=True)
    if fleet.gateway_url:
        root = fleet.gateway_url.removesuffix("/v1")
        _say(f"mock gateway      {fleet.gateway_url}   (its request log: curl {root}/ledger)")
    if fleet.flower_url and fleet.flower_login:
        user, password = fleet.flower_login
        _say(f"Flower            {fleet.flower_url}   user {user}, password {password}")
    if fleet.serve_url:
        _say(f"front door        {fleet.serve_url}   (for any OpenAI client, as OPENAI_BASE_URL)")
    _say(f"logs              {fleet.logs}")
    where = "in a shell where you have typed that line" if own_redis else "where BRIMFUL_REDIS_URL is the same"
    _say(f"enqueue, {where}:")
    _say("  brimful run prompts.jsonl -o rollouts.jsonl")
    _say("  python -c \"import brimful; print(brimful.sample.delay('The sky is', max_tokens=8).get())\"")


def _wait_for_redis(settings: Settings, take_over: bool, stop: _StopSignal) -> None:
    """Returns when the fleet's Redis answers, or ``stop`` is asked for. Raises RedisUnusable: waiting will not help."""
    url, said = required(settings.redis_url), False
    while not stop.asked:
        try:
            check_servers(settings)
            if take_over:
                take_fleet_over(settings)
            return
        except RedisUnusable:
            raise
        except (RedisUnreachable, *REDIS_ERRORS) as error:
            said = said or _say_away(url, error)
        stop.wait(_LOOK_S)


def _wait_until_ready(fleet: LocalFleet, workers: int, stop: _StopSignal) -> None:
    from kombu.exceptions import OperationalError  # slow to import

    began, said = time.monotonic(), False
    while not stop.asked:
        fleet.check()
        try:
            ready = fleet.ready_workers()
        except (RedisUnreachable, OperationalError, *REDIS_ERRORS) as error:
            said = said or _say_away(fleet.redis_url, error)
            stop.wait(_LOOK_S)
            continue
        if ready >= workers and fleet.door_ready:
            took = time.monotonic() - began
            _say(f"{counted(workers, 'worker')} ready after {took:.1f} s; Ctrl-C stops the fleet")
            return


def _say_away(url: str, error: Exception) -> bool:
    _say(f"{error if isinstance(error, RedisUnreachable) else unreachable(url, error)}. {_AWAY}")
    return True


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
