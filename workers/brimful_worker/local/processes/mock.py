"""The mock gateway as a child process of a rehearsal: options as JSON in, its URL out, until SIGTERM."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brimful.config import Settings
from brimful.errors import FleetError
from brimful_worker.local.processes.environment import keyless_environment
from brimful_worker.local.processes.processes import Child, Lifeline

if TYPE_CHECKING:
    from brimful_worker.gateway import GatewayOptions

_START_S = 20.0


class MockGateway:
    """The owner's side. It keeps the limits that the fleet keeps, unless ``options`` say otherwise."""

    def __init__(
        self, settings: Settings, options: GatewayOptions | Mapping[str, Any] | None, logs: Path, lifeline: Lifeline
    ) -> None:
        profile = settings.profile
        own: Mapping[str, Any] = options if isinstance(options, Mapping) else vars(options) if options else {}
        fields = {
            "slots": profile.slots,
            "starts": profile.starts,
            "window_s": profile.window_s,
            "max_request_tokens": profile.max_request_tokens,
            "max_tokens_required": profile.max_tokens_required,
            "models": [],  # any
            **own,
        }
        self.child = Child(
            "gateway",
            "gateway",
            [json.dumps(fields)],
            environment=keyless_environment(settings),
            log=logs / "gateway.log",
            lifeline=lifeline,
        )

    def start(self) -> str:
        """Returns its URL, which ends in /v1, when it listens. Raises FleetError with the end of its log."""
        answers = self.child.start(answers=True)
        assert answers is not None
        with answers:
            readable, _, _ = select.select([answers], [], [], _START_S)
            url = answers.readline().decode().strip() if readable else ""
        if not url:
            raise FleetError(f"the mock gateway did not start:\n{self.child.log_tail()}")
        return url


def serve(options: str) -> int:
    """The child's side: serve on a free port of 127.0.0.1. Writes the URL as a line to stdout."""
    from brimful_worker.gateway import Gateway, GatewayOptions
    from brimful_worker.gateway.process import serve as serve_gateway

    serve_gateway(Gateway(GatewayOptions(**json.loads(options))), host="127.0.0.1", port=0, ready=_tell)
    return 0


def _tell(gateway: Any) -> None:
    os.write(1, f"{gateway.url}\n".encode())
