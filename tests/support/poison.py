"""Workers that die of a poison request: ``python -m support.poison NAME`` is a brimful worker that kills itself while a
prompt with :data:`POISON` in it is on the wire.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.commands import environment
from support.pool_worker import TESTS, Background

POISON = "a prompt that kills its worker"
_AFTER_S = 0.1


class Fleet:
    """``workers`` of them. Dead ones are replaced by :meth:`tend`, which tests call while they wait."""

    def __init__(self, folder: Path, workers: int, **env: str) -> None:
        self.deaths = 0
        self._folder = folder
        self._env = environment(PYTHONPATH=str(TESTS), **env)
        self._started = 0
        self._workers = [self._start() for _ in range(workers)]

    def ready(self) -> Self:
        for worker in self._workers:
            worker.ready()
        return self

    def tend(self) -> int:
        """Returns how many workers have died so far."""
        for place, worker in enumerate(self._workers):
            if worker.process.poll() is not None:
                self.deaths += 1
                self._workers[place] = self._start()
        return self.deaths

    def kill_all(self) -> None:
        for worker in self._workers:
            worker.process.kill()
            worker.process.wait()
        self.tend()

    @property
    def newest(self) -> str:
        """The log of the worker that was started last."""
        return (self._folder / f"poison-{self._started}.log").read_text("utf-8", "replace")

    @property
    def logs(self) -> str:
        return "\n".join(path.read_text("utf-8", "replace") for path in sorted(self._folder.glob("poison-*.log")))

    def _start(self) -> Background:
        self._started += 1
        command = [sys.executable, "-m", "support.poison", f"poison-{self._started}"]
        return Background(command, self._env, self._folder / f"poison-{self._started}.log")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            try:
                worker.process.wait(20)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        if error is not None:
            print(self.logs[-20_000:], file=sys.stderr)


def _main(name: str) -> int:
    from brimful_worker.provider.session import Provider
    from brimful_worker.startup import run_worker

    complete = Provider.complete

    async def poisoned(self: Provider, part: Any, body: bytes, grant: Any, on_sent: Any) -> Any:
        if POISON.encode() in body:
            asyncio.get_running_loop().call_later(_AFTER_S, os.kill, os.getpid(), signal.SIGKILL)
        return await complete(self, part, body, grant, on_sent)

    Provider.complete = poisoned  # type: ignore[method-assign]
    return run_worker(name=name)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
