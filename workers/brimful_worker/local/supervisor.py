"""Keeps a local fleet's processes running: workers, Flower, and the keeper of the embedded Valkey."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from brimful.errors import BrimfulError, ExitCode, FleetError
from brimful_worker.local.flower.process import FlowerChild
from brimful_worker.local.processes.child_process import Child
from brimful_worker.local.server.shared import SharedValkey

log = logging.getLogger(__name__)

_LOOK_S = 1.0
"""How often logs are looked at; a process that ends is noticed at once."""
_BLIND_S = 0.2
"""How often everything is, while one of the processes cannot be watched."""
_HEALTHY_S = 20.0
"""A worker that ran this long was healthy: the next one may be too."""
GIVE_UP = 5
"""Short lives in a row that the worker ended itself, after which it is not restarted."""
_BASE_S = 0.2
_CAP_S = 5.0
_KILLED = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)
"""Exit codes of a worker that somebody else ended (the out-of-memory killer, an operator)."""


@dataclass(slots=True)
class RestartPolicy:
    """When one worker is restarted: with backoff, and always if somebody else ended it."""

    short_lives: int = 0
    faults: int = 0

    def delay(self, returncode: int, lived_s: float) -> float | None:
        """Seconds until the worker that has ended is restarted; None when it is given up."""
        if lived_s >= _HEALTHY_S:
            self.short_lives = self.faults = 0
        else:
            self.short_lives += 1
            if returncode not in _KILLED and returncode != 0:
                self.faults += 1
        if returncode == ExitCode.USAGE or self.faults >= GIVE_UP:
            return None
        return 0.0 if not self.short_lives else min(_CAP_S, _BASE_S * 2.0 ** (self.short_lives - 1))


class Supervisor:
    """A thread that restarts processes until ``stop`` is called or a worker is given up, which sets ``failure``."""

    def __init__(self, workers: Sequence[Child], flower: FlowerChild | None, valkey: SharedValkey | None) -> None:
        self.failure: BrimfulError | None = None
        self.restarts = 0
        """Of workers."""
        self._workers = workers
        self._flower = flower
        self._valkey = valkey
        self._policies = {child.name: RestartPolicy() for child in workers}
        self._due: dict[str, float] = {}
        """When each ended worker is restarted, by time.monotonic()."""
        self._stopping = threading.Event()
        self._waker, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="brimful-fleet", daemon=True)

    def start(self) -> None:
        """:meth:`stop` must follow."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Restart nothing more; a restart under way may still finish."""
        self._stopping.set()
        self._waker.close()

    def stop(self) -> None:
        """Nothing is restarted after this returns. Idempotent."""
        self.ask_to_stop()
        self._thread.join()
        self._woken.close()

    def _run(self) -> None:
        while True:
            wait_for_end(self._pids(), self._woken, _LOOK_S)
            if self._stopping.is_set():
                return
            try:
                if self._valkey is not None:
                    self._valkey.revive()
                for child in self._workers:
                    child.bound_log()
                    if not child.alive:
                        self._restart(child)
                if self._flower is not None:
                    self._flower.restart_if_ended()
            except BrimfulError as error:
                self.failure = error
                return
            except OSError as error:  # no more processes or files for now
                log.warning("the local fleet could not start a process: %s", error)

    def _pids(self) -> Iterable[int | None]:
        for child in (*self._workers, *([self._flower.child] if self._flower else [])):
            yield child.pid if child.alive else None
        if self._valkey is not None:
            yield self._valkey.keeper

    def _restart(self, child: Child) -> None:
        now = time.monotonic()
        if child.name not in self._due:
            delay = self._policies[child.name].delay(child.returncode or 0, now - child.started_at)
            if delay is None:
                raise _given_up(child)
            log.warning("%s ended with status %s: restarting it", child.name, child.returncode)
            self._due[child.name] = now + delay
        if self._due[child.name] <= now and not self._stopping.is_set():
            del self._due[child.name]
            child.start()
            self.restarts += 1


def wait_for_end(pids: Iterable[int | None], woken: socket.socket, most_s: float) -> None:
    """Returns when one of these processes has ended or ``woken`` can be read, and after ``most_s`` seconds; after
    :data:`_BLIND_S` if a process has ended before, is not known (None), or cannot be watched on this system."""
    poll = select.poll()
    poll.register(woken, select.POLLIN)
    with contextlib.ExitStack() as stack:
        for pid in pids:
            try:
                if pid is None:
                    raise ProcessLookupError
                handle = os.pidfd_open(pid)
            except (OSError, AttributeError):
                most_s = min(most_s, _BLIND_S)
                continue
            stack.callback(os.close, handle)
            poll.register(handle, select.POLLIN)
        poll.poll(1000 * most_s)


def _given_up(child: Child) -> BrimfulError:
    """An error with the end of the worker's log, and with its exit code where that names the cause."""
    error = FleetError(
        f"{child.name} kept ending, last with status {child.returncode}; its log ({child.log}) ends:\n"
        f"{child.log_tail()}"
    )
    if child.returncode in (ExitCode.USAGE, ExitCode.KEY_REFUSED):
        error.exit_code = ExitCode(child.returncode)
    return error
