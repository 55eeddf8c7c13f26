"""Keeps a local fleet's processes alive: workers, Flower, and the hub's keeper."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from brimful.errors import BrimfulError, ExitCode, FleetError
from brimful_worker.local.flower.process import FlowerChild
from brimful_worker.local.processes.processes import Child
from brimful_worker.local.processes.respawn import Respawn
from brimful_worker.local.server.hub import Hub

log = logging.getLogger(__name__)

_LOOK_S = 0.2


class Supervisor:
    """A thread that starts again what ended, until ``stop``, or until a worker keeps failing and ``failure`` is set."""

    def __init__(self, workers: Sequence[Child], flower: FlowerChild | None, hub: Hub | None) -> None:
        self.failure: BrimfulError | None = None
        self.respawns = 0
        self._workers = workers
        self._flower = flower
        self._hub = hub
        self._histories = {child.name: Respawn() for child in workers}
        self._due: dict[str, float] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="brimful-fleet", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Nothing is started again from now on, but for what is being started."""
        self._stopping.set()

    def stop(self) -> None:
        """Nothing is started again once this returns. Idempotent."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            try:
                if self._hub is not None:
                    self._hub.revive()
                for child in self._workers:
                    child.bound_log()
                    if not child.alive:
                        self._start_again(child)
                if self._flower is not None:
                    self._flower.look()
            except BrimfulError as error:
                self.failure = error
                return
            except OSError as error:  # no more processes or files, for now
                log.warning("the local fleet could not start a process: %s", error)

    def _start_again(self, child: Child) -> None:
        now = time.monotonic()
        if child.name not in self._due:
            delay = self._histories[child.name].after(child.returncode or 0, now - child.started_at)
            if delay is None:
                raise _gave_up(child)
            log.warning("%s ended (%s): starting it again", child.name, child.returncode)
            self._due[child.name] = now + delay
        if self._due[child.name] <= now and not self._stopping.is_set():
            del self._due[child.name]
            child.start()
            self.respawns += 1


def _gave_up(child: Child) -> BrimfulError:
    """With the worker's own exit code where that says what kind of thing is wrong."""
    error = FleetError(
        f"{child.name} ended again and again, last with status {child.returncode}; its log ({child.log}) ends:\n"
        f"{child.log_tail()}"
    )
    if child.returncode in (ExitCode.USAGE, ExitCode.KEY_REFUSED):
        error.exit_code = ExitCode(child.returncode)
    return error
