"""Real worker processes for the pool's tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from celery import Celery

from support.startup import python_path
from support.waiting import wait_until

TESTS = Path(__file__).resolve().parents[1]


class Background:
    """A process with its output in a file; killed at the end of a ``with``, if it still runs."""

    def __init__(self, command: list[str], env: dict[str, str], log: Path | None = None) -> None:
        self.log = log or Path(tempfile.mkstemp(suffix=".log")[1])
        with self.log.open("wb") as file:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, cwd=self.log.parent, env=env
            )

    @property
    def output(self) -> str:
        return self.log.read_text("utf-8", "replace")

    def ready(self) -> Self:
        """Returns when the Celery worker says so."""
        wait_until(lambda: "ready." in self.output or self.process.poll() is not None, "the worker to be ready", 60)
        assert self.process.poll() is None, self.output
        return self

    def stop(self, sig: int = signal.SIGTERM, timeout: float = 60.0) -> int:
        self.process.send_signal(sig)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not stop:\n{self.output}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if error is not None:
            print(f"---- {self.log.name}\n{self.output[-6000:]}", file=sys.stderr)


class PoolWorker(Background):
    """``celery -A support.pool_app worker`` with our pool."""

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
        directory: Path | None = None,
    ) -> None:
        self.node = f"{name}@test"
        command = [sys.executable, "-m", "celery", "-A", "support.pool_app", "worker", "-P", "custom"]
        command += ["-c", str(concurrency), "-n", self.node, "-l", "INFO", "--without-gossip"]
        super().__init__(
            [*command, *arguments],
            {
                **os.environ,
                "PYTHONPATH": python_path(TESTS),
                "CELERY_CUSTOM_WORKER_POOL": "brimful_worker.pool:TaskPool",
                "POOL_APP_REDIS": url,
                "POOL_APP_NOTES": notes or url,
                "POOL_APP_VISIBILITY": str(visibility_s),
                **(environment or {}),
            },
            (directory or Path.cwd()) / f"{name}-{id(self)}.log",
        )


@contextmanager
def client(url: str) -> Iterator[Celery]:
    """A Celery app of another service, which knows only the broker, the backend and task names."""
    app = Celery("service", broker=url, backend=url, set_as_current=False)
    try:
        yield app
    finally:
        app.backend.remove_pending_result = lambda result: result  # results may outlive the server
        app.backend.result_consumer.stop()
        app.backend.client.close()
        app.close()


def settled(client: Any) -> bool:
    """Nothing is delivered and not acknowledged."""
    return not client.hlen("unacked") and not client.zcard("unacked_index")
