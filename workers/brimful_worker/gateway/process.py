"""The gateway as a process of its own: one loop, uvloop's, until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
from collections.abc import Callable

import uvloop

from brimful.errors import UsageError
from brimful_worker.gateway.app import Gateway


def serve(gateway: Gateway, *, host: str, port: int, ready: Callable[[Gateway], None]) -> None:
    """Serves until SIGINT or SIGTERM; calls ``ready`` once it listens. Raises UsageError where it cannot listen."""
    _raise_nofile()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(gateway, host, port, ready))


async def _serve(gateway: Gateway, host: str, port: int, ready: Callable[[Gateway], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        await gateway.start(port, host)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"--port {port}: cannot listen on {host}:{port}: {reason}; take another, or 0") from None
    try:
        ready(gateway)
        await stop.wait()
    finally:
        await gateway.stop()


def _raise_nofile() -> None:
    """A file descriptor per connection: as many as the system lets us have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
