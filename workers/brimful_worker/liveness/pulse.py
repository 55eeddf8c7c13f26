"""The worker's side of its guardian (:mod:`brimful_worker.liveness.guardian`): a thread that starts it and sends beats.

Failure mode: without a guardian, or while it is started again, the worker works on; only a worker that is stopped as a
whole then goes unnoticed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable

from brimful_worker.liveness import guardian

log = logging.getLogger(__name__)

_BEATS, _BEAT_LEAST_S, _BEAT_MOST_S = 6, 0.3, 1.0
"""Beats per allowed silence, so that a late one does no harm; and the bounds of the pauses between them."""
SILENCE_LEAST_S = 2.0
"""A busy machine may suspend any process for a second, which must not kill it. So leases below 5 s are not guarded to
their end."""
_RESTART_S = 2.0
_PASSED_ON = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LANG", "LC_ALL")
"""The only environment variables of the guardian: an interpreter may need them to start. Never the API key."""


class Pulse:
    """``may_be_silent()``, called on this class's thread: seconds from now in which no lease of this process ends."""

    def __init__(self, may_be_silent: Callable[[], float]) -> None:
        self._may_be_silent = may_be_silent
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="brimful-pulse", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Wait until the guardian has ended, for two seconds at most. Idempotent."""
        self._stopping.set()
        self._thread.join(2.0)

    def _run(self) -> None:
        if os.getpid() == 1:  # the kernel lets nobody inside a container kill its first process
            log.warning("no guardian can kill this worker, since it is process 1: give the container an init (--init)")
            return
        warned = False
        while True:
            try:
                self._guarded()
            except OSError as error:
                if not warned:
                    log.warning("the guardian of this worker ended or could not be started (%s); trying again", error)
                warned = True
            if self._stopping.wait(_RESTART_S):
                return

    def _guarded(self) -> None:
        """Start a guardian and write beats until :meth:`stop`. Raises OSError if it ended or could not be started.

        No other process inherits an end of the pipe: only the guardian reads it, only this process writes it.
        """
        read, write = os.pipe()
        try:
            os.set_blocking(write, False)
            process = _start(read, self._silence_ms())
        except OSError:
            os.close(write)
            raise
        finally:
            os.close(read)
        try:
            while True:
                silence_ms = self._silence_ms()
                with contextlib.suppress(BlockingIOError):  # the guardian stands still itself; it will read them all
                    os.write(write, b"%d\n" % silence_ms)
                if self._stopping.wait(max(_BEAT_LEAST_S, min(silence_ms / 1000 / _BEATS, _BEAT_MOST_S))):
                    return
        finally:
            os.close(write)
            _end(process)

    def _silence_ms(self) -> int:
        return int(max(SILENCE_LEAST_S, self._may_be_silent()) * 1000)


def _start(read: int, silence_ms: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - this interpreter, and a file of ours
        [sys.executable, "-I", "-S", guardian.__file__, str(read), str(os.getpid()), str(silence_ms)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        cwd="/",
        pass_fds=(read,),
        start_new_session=True,  # so that neither Ctrl-C nor Ctrl-Z in a terminal reaches it
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a guardian whose pipe is closed: it ends by itself."""
    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
