"""Runs the mock gateway as a process of its own, on one uvloop event loop, until a signal ends it."""

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
    """Serve until SIGINT or SIGTERM; ``ready`` is called when it listens. Raises UsageError if it cannot listen."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # each connection needs a file descriptor
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
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
