"""Client processes, the servers they use, and the amount of work."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from contenders import Entry

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Sizes:
    """The amount of work. ``wide`` is the number of waiters in the crowded scenarios; all times are seconds."""

    rounds: int = 4
    wide: int = 400
    wide_hold_s: float = 0.5
    handoff_s: float = 4.0
    rate_s: float = 3.0
    recovery_bound_s: float = 45.0
    memory_hold_s: float = 3.0
    window_s: float = 2.0
    window_starts: int = 60
    windows: int = 5
    growth_s: float = 25.0
    share_s: float = 4.0


FULL = Sizes()
QUICK = Sizes(
    rounds=2,
    wide=200,
    wide_hold_s=0.15,
    handoff_s=1.5,
    rate_s=1.0,
    share_s=2.0,
    recovery_bound_s=15.0,
    memory_hold_s=1.2,
    windows=2,
    growth_s=10.0,
)


@dataclass
class Bench:
    """Where clients run: the server's URL, and the Python for our client and for the peers'."""

    url: str
    ours: str
    peers: str
    sizes: Sizes
    notes: list[str] = field(default_factory=list)

    def fresh(self, entry: Entry) -> None:
        """Empty the server. For ours, mark its memory as complete, as a fleet does with a server it has started."""
        with redis.Redis.from_url(self.url) as client:
            client.flushall()
            if entry.ours:
                from brimful_worker.admission import mark_clean

                mark_clean(client, "bench")

    def clients(self, entry: Entry, *specs: dict[str, Any]) -> list[Client]:
        python = self.ours if entry.ours else self.peers
        started = [Client([python, str(_HERE / "client.py")], entry.name, self.url, spec) for spec in specs]
        for client in started:
            client.expect("ready")
        return started

    def flush(self) -> None:
        with redis.Redis.from_url(self.url) as client:
            client.flushall()


class Client:
    """A client process, which is ended by its own handle."""

    def __init__(
        self,
        command: Sequence[str],
        limiter: str,
        url: str,
        spec: dict[str, Any],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """``command`` gets the specification as its last argument."""
        spec = {"bound_s": 60.0, **spec, "limiter": limiter, "url": url}
        self.process = subprocess.Popen(
            [*command, json.dumps(spec)],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def expect(self, word: str) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if line != word:
            self.process.kill()
            _, errors = self.process.communicate()
            raise RuntimeError(f"expected {word!r}, got {line!r}: {errors.strip().splitlines()[-1:]}")

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def result(self, timeout: float = 120.0) -> dict[str, Any]:
        try:
            out, errors = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        lines = [line for line in out.splitlines() if line.startswith("{")]
        if not lines:
            raise RuntimeError(f"no result: {errors.strip().splitlines()[-1:]}")
        answer: dict[str, Any] = json.loads(lines[-1])
        return answer

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def together(clients: Sequence[Client]) -> list[dict[str, Any]]:
    for client in clients:
        client.go()
    return [client.result() for client in clients]
