"""Answers that would take a worker's memory or time end their own requests, with a cause, and nothing else."""

from __future__ import annotations

import json
import threading
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import pytest

from brimful.errors import SampleError
from brimful_worker.local.server.valkey import Valkey
from support.commands import command, environment
from support.fleets import declare_new
from support.hostile import BODIES, STREAMS, hostile_provider
from support.pool_worker import Background, client
from support.waiting import wait_until

MB = 2**20
ONCE = {
    *("2 GB", "endless", "gzip bomb", "deflate bomb", "endless chunk extension", "endless chunks", "endless hints"),
    *("many choices", "many objects", "many numbers", "nested lists", "nested objects", "cut", "deep"),
    *("nested extra", "nested a little", "endless error"),
}
"""Asked again, these would be as large again."""
SLOTS = 4


class PeakMemory:
    """The most resident memory of a process within the block, in bytes."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.before = self.bytes = self._process.memory_info().rss

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.005) and self._process.is_running():
            self.bytes = max(self.bytes, self._process.memory_info().rss)


@pytest.mark.timeout(400)
def test_hostile_answers_end_their_own_requests_in_bounded_memory(valkey: Valkey, tmp_path: Path) -> None:
    """All of them, four at a time, with ordinary requests between them."""
    declare_new(valkey, "sk-h")
    with hostile_provider() as url, client(valkey.url) as service:
        env = environment(ACS_API_BASE=url, ACS_API_KEY="sk-h", BRIMFUL_REDIS_URL=valkey.url)
        env |= {"BRIMFUL_SLOTS": str(SLOTS), "BRIMFUL_ATTEMPTS": "2", "BRIMFUL_CIRCUIT_BREAKER": "0"}
        env |= {"BRIMFUL_BACKOFF_CAP_S": "0.1", "BRIMFUL_TIMEOUT_S": "60"}
        with Background(command("worker", "--name", "one@test"), env).ready() as worker:
            with PeakMemory(worker.process.pid) as peak:
                asked, ordinary = {}, []
                for prompt in (*BODIES, *STREAMS):
                    asked[prompt] = service.send_task("brimful.sample", (prompt,), {"max_tokens": 4})
                    ordinary.append(service.send_task("brimful.sample", ("ordinary",), {"max_tokens": 4}))
                failures = {}
                for prompt, result in asked.items():
                    failures[prompt] = result.get(timeout=150, propagate=False)
                for result in ordinary:
                    assert result.get(timeout=60)["choices"][0]["text"] == " x"
            assert worker.process.poll() is None, worker.output
            kinds = {prompt: getattr(failure, "args", (None, None))[1] for prompt, failure in failures.items()}
            assert all(isinstance(failure, SampleError) for failure in failures.values()), failures
            assert set(kinds.values()) <= {"bad_answer", "connection", "bad_request", "server_error"}, kinds
            with urllib.request.urlopen(f"{url.removesuffix('/v1')}/asked") as answer:
                times = json.load(answer)
            assert {prompt: times[prompt] for prompt in ONCE} == dict.fromkeys(ONCE, 1)
            assert "brimful's own fault" not in str(failures)
            # Four bodies of 64 MB, one of them being parsed or joined, and what the allocator keeps.
            assert peak.bytes - peak.before < 700 * MB
            # Every slot is free again.
            more = [service.send_task("brimful.sample", ("ordinary",), {"max_tokens": 4}) for _ in range(4 * SLOTS)]
            wait_until(lambda: all(result.successful() for result in more), "ordinary requests", 60)
