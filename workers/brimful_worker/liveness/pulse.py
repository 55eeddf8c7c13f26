"""The worker's side of its guardian (:mod:`brimful_worker.liveness.guardian`): a thread that starts it and keeps
writing beats.

Failure mode: without a guardian, or while one is started again, all works on; only a worker that is stopped as a whole
is then not noticed before it goes on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from brimful_worker.liveness import guardian

log = logging.getLogger(__name__)

_BEATS, _BEAT_LEAST_S, _BEAT_MOST_S = 6, 0.3, 1.0
"""So many beats in a silence that is allowed, so that one that comes late harms nobody; and the pauses between them."""
SILENCE_LEAST_S = 2.0
"""A busy machine may keep any process waiting for a second; nobody is killed for that. Leases under 5 s cannot be
guarded to the end, then."""
_TRIES = 3
_LONG_S = 60.0
"""After so long a guardian's end is no sign that the next will end too."""
_PASSED_ON = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LANG", "LC_ALL")
"""All that the guardian gets of the environment: an interpreter may need the first two to start. Never the key."""


class Pulse:
    """``may_be_silent()`` tells, on this class's thread, how many seconds from now no lease of this process ends."""

    def __init__(self, may_be_silent: Callable[[], float]) -> None:
        self._may_be_silent = may_be_silent
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="brimful-pulse", daemon=True)

    def start(self) -> None:
        """Returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """The guardian has ended when this returns, within two seconds. Idempotent."""
        self._stopping.set()
        self._thread.join(2.0)

    def _run(self) -> None:
        if os.getpid() == 1:  # the kernel lets nobody in a container kill its first process
            log.warning("no guardian can end this worker, as it is process 1: give the container an init (--init)")
            return
        tries = _TRIES
        while tries:
            since = time.monotonic()
            try:
                self._beat_on()
            except OSError as error:
                log.debug("the guardian: %s", error)
            if self._stopping.wait(_BEAT_LEAST_S):
                return
            tries = _TRIES if time.monotonic() - since > _LONG_S else tries - 1
        log.warning("no guardian watches this worker: it ended, or could not be started, %d times", _TRIES)

    def _beat_on(self) -> None:
        """Starts a guardian and writes beats until we stop. Raises OSError when it has ended or could not be started.

        Neither end of the pipe is inherited by any other process: the guardian alone reads, this process alone writes.
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
            log.debug("guardian %d watches this worker", process.pid)
            while True:
                silence_ms = self._silence_ms()
                with contextlib.suppress(BlockingIOError):  # it stands still itself, and will look twice when it wakes
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
        start_new_session=True,  # neither a terminal's Ctrl-C nor its Ctrl-Z is meant for it
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Its pipe is closed, so it ends of itself."""
    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
