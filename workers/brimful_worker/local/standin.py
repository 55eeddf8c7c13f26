"""The stand-in gateway as a child process of a rehearsal: options as JSON in, its URL out, until SIGTERM."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any


def serve(options: str) -> int:
    """Serve on a free port of 127.0.0.1; ``options`` are GatewayOptions' fields. Prints the URL as the first line."""
    import uvloop

    uvloop.run(_serve(json.loads(options)))
    return 0


async def _serve(options: dict[str, Any]) -> None:
    from brimful_worker.local.gateway import Gateway, GatewayOptions

    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    gateway = Gateway(GatewayOptions(**_tuples(options)))
    await gateway.start(port=0)
    try:
        os.write(1, f"{gateway.url}\n".encode())
        await stopped.wait()
    finally:
        await gateway.stop()


def _tuples(options: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
