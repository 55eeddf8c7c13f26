"""The stand-in gateway as a child process of a rehearsal: options as JSON in, its URL out, until SIGTERM."""

from __future__ import annotations

import json
import os
from typing import Any


def serve(options: str) -> int:
    """Serve on a free port of 127.0.0.1; ``options`` are GatewayOptions' fields. Writes the URL as a line to stdout."""
    from brimful_worker.local.gateway import Gateway, GatewayOptions
    from brimful_worker.local.gateway.process import serve

    gateway = Gateway(GatewayOptions(**_tuples(json.loads(options))))
    serve(gateway, host="127.0.0.1", port=0, ready=_tell)
    return 0


def _tell(gateway: Any) -> None:
    os.write(1, f"{gateway.url}\n".encode())


def _tuples(options: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
