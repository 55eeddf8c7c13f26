"""Real worker processes for the pool's tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from celery import Celery

from support.waiting import wait_until

TESTS = Path(__file__).resolve().parents[1]


class PoolWorker:
    """``celery -A support.pool_app worker`` with our pool; killed at the end of a ``with``, if it still runs."""

    def __init__(
        self,
        url: str,
        *,
        notes: str | None = None,
        concurrency: int = 10,
        name: str = "w1",
        visibility_s: int = 15,
        arguments: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
        app: str = "support.pool_app",
        directory: Path | None = None,
    ) -> None:
        directory = directory or Path.cwd()
        self.log = directory / f"{name}-{id(self)}.log"
        self.node = f"{name}@test"
        command = [sys.executable, "-m", "celery", "-A", app, "worker", "-P", "custom", "-c", str(concurrency)]
        command += ["-n", self.node, "-l", "INFO", "--without-mingle", "--without-gossip", *arguments]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env={
                    **os.environ,
                    "PYTHONPATH": str(TESTS),
                    "CELERY_CUSTOM_WORKER_POOL": "brimful_worker.pool:TaskPool",
                    "POOL_APP_REDIS": url,
                    "POOL_APP_NOTES": notes or url,
                    "POOL_APP_VISIBILITY": str(visibility_s),
                    **(environment or {}),
                },
            )

    def ready(self) -> PoolWorker:
        wait_until(lambda: "ready." in self.text() or self.process.poll() is not None, "the worker to be ready", 60)
        assert self.process.poll() is None, self.text()
        return self

    def text(self) -> str:
        return self.log.read_text("utf-8", "replace")

    def stop(self, sig: int = signal.SIGTERM, timeout: float = 30.0) -> int:
        self.process.send_signal(sig)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker did not stop:\n{self.text()}") from None

    def __enter__(self) -> PoolWorker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if error is not None:
            print(f"---- {self.log.name}\n{self.text()[-6000:]}", file=sys.stderr)


@contextmanager
def client(url: str) -> Iterator[Celery]:
    """A stranger's Celery app: it knows broker, backend and task names."""
    app = Celery("stranger", broker=url, backend=url, set_as_current=False)
    try:
        yield app
    finally:
        app.backend.result_consumer.stop()
        app.backend.client.close()
        app.close()


def settled(client: Any) -> bool:
    """Nothing is delivered and not acknowledged."""
    return not client.hlen("unacked") and not client.zcard("unacked_index")
