"""Mock gateways for tests: in this process, or as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from brimful_worker.gateway import Gateway, GatewayOptions
from support.forked import Forked


@asynccontextmanager
async def running_gateway(**options: Any) -> AsyncIterator[Gateway]:
    """A gateway on a free port of this process's loop, without latency unless ``options`` set one."""
    quick = {"latency_s": 0.0, "per_token_s": 0.0, **options}
    async with Gateway(GatewayOptions(**quick)) as gateway:
        yield gateway


@dataclass(frozen=True)
class GatewayProcess:
    """``brimful gateway`` in a process of its own."""

    url: str
    """Ends in ``/v1``."""
    process: Forked

    @property
    def root(self) -> str:
        return self.url.removesuffix("/v1")

    def ledger(self, *, arrivals: bool = False) -> dict[str, Any]:
        return self._ask("/ledger?arrivals=1" if arrivals else "/ledger")

    def reset(self) -> None:
        self._ask("/ledger/reset", {})

    def set_faults(self, faults: str) -> None:
        self._ask("/faults", {"faults": faults})

    def set_options(self, **options: Any) -> None:
        self._ask("/options", options)

    def sampled(self, prompts: list[Any]) -> list[dict[str, Any]]:
        """For each prompt ``{"attempts": …, "sampled": [times choice 0, times choice 1, …]}``."""
        found: list[dict[str, Any]] = self._ask("/ledger/prompts", {"prompts": prompts})["prompts"]
        return found

    def _ask(self, path: str, body: Any = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(self.root + path, data, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
        return found


@contextmanager
def gateway_process(*flags: str) -> Iterator[GatewayProcess]:
    """``brimful gateway --port 0 FLAGS``, e.g. ``gateway_process("--latency", "0", "--per-token", "0")``."""
    process = Forked("brimful.cli", "gateway", "--port", "0", *flags, env=os.environ, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        assert url, f"the gateway exited with {process.wait(10)} before it listened"
        yield GatewayProcess(url, process)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
