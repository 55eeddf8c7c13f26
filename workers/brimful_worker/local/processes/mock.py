"""Runs the mock gateway as a child process of a local fleet, which samples from it in place of the provider."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brimful.config import Settings
from brimful.errors import FleetError
from brimful_worker.local.processes.child_process import Child
from brimful_worker.local.processes.environment import keyless_environment

_START_S = 20.0


def mock_gateway(settings: Settings, options: Mapping[str, Any], logs: Path, owner_fd: int) -> Child:
    """The child process, not started yet. The mock gateway has the fleet's limits, which ``options`` (fields of
    GatewayOptions) may change."""
    profile = settings.profile
    fields = {
        "slots": profile.slots,
        "starts": profile.starts,
        "window_s": profile.window_s,
        "max_request_tokens": profile.max_request_tokens,
        "max_tokens_required": profile.max_tokens_required,
        "models": [],  # any
        "key_headers": [profile.key_header],
        **options,
    }
    environment, log = keyless_environment(settings), logs / "gateway.log"
    return Child("gateway", "gateway", [json.dumps(fields)], environment=environment, log=log, owner_fd=owner_fd)


def start_mock_gateway(child: Child) -> str:
    """Returns its URL, which ends in /v1, when it listens. Raises FleetError with the end of its log."""
    stdout = child.start(capture=True)
    assert stdout is not None
    with stdout:
        readable, _, _ = select.select([stdout], [], [], _START_S)
        url = stdout.readline().decode().strip() if readable else ""
    if not url:
        raise FleetError(f"the mock gateway did not start:\n{child.log_tail()}")
    return url


def serve(options: str) -> int:
    """Called in the child process: serve on a free port of 127.0.0.1, and write the URL as a line to stdout."""
    from brimful_worker.gateway import Gateway, GatewayOptions
    from brimful_worker.gateway.process import serve as serve_gateway

    serve_gateway(Gateway(GatewayOptions(**json.loads(options))), host="127.0.0.1", port=0, ready=_print_url)
    return 0


def _print_url(gateway: Any) -> None:
    os.write(1, f"{gateway.url}\n".encode())
