"""Child processes of a local fleet, seen from their owner: each has its own log, and none outlives the owner.

The owner holds the write end of a pipe; every child watches the read end (:mod:`.child`) and ends when it closes. This
covers kill -9 of the owner on every Unix, whichever thread started the child.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

_LOG_BYTES = 16 * 2**20
_TAIL_BYTES = 16_384


class Child:
    """One process, ``python -m brimful_worker.local.processes.child FD ROLE ARGUMENT…``, which can be restarted.

    ``environment`` is its whole environment: secrets belong there, never in ``arguments``. ``owner_fd`` is the read end
    of the owner's pipe.
    """

    def __init__(
        self,
        name: str,
        role: str,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path,
        owner_fd: int,
        pass_fds: tuple[int, ...] = (),
        cwd: Path | None = None,
    ) -> None:
        self.name = name
        self.log = log
        module = "brimful_worker.local.processes.child"
        self._command = [sys.executable, "-m", module, str(owner_fd), role, *arguments]
        self._environment = dict(environment)
        self._pass_fds = (owner_fd, *pass_fds)
        self._cwd = cwd
        self._process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        """time.monotonic()"""

    def start(self, *, capture: bool = False) -> IO[bytes] | None:
        """Start it. Its stdout goes to the log, or with ``capture`` is returned for reading."""
        with open(self.log, "ab", opener=_private) as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if capture else log,
                stderr=log,
                env=self._environment,
                cwd=self._cwd,
                start_new_session=True,  # a terminal's Ctrl-C is for the owner, who stops its children itself
                pass_fds=self._pass_fds,
            )
        self.started_at = time.monotonic()
        return self._process.stdout

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def terminate(self) -> None:
        """SIGTERM, and SIGCONT, without which a stopped process would not receive it."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def wait(self, timeout: float) -> None:
        """Returns when it has ended, or after ``timeout`` seconds."""
        try:
            if self._process is not None:
                self._process.wait(max(0.0, timeout))
        except subprocess.TimeoutExpired:
            pass

    def log_tail(self, lines: int = 12) -> str:
        """The last lines of its log."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                return "\n".join(log.read().decode("utf-8", "replace").splitlines()[-lines:])
        except OSError:
            return ""

    def bound_log(self) -> None:
        """Empty a log that has grown past 16 MiB, and keep its last lines in ``.1``."""
        try:
            if self.log.stat().st_size > _LOG_BYTES:
                self.log.with_suffix(".log.1").write_text(self.log_tail(200) + "\n", "utf-8")
                os.truncate(self.log, 0)  # the child appends, so it continues at the new end
        except OSError:
            pass

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)


def stop_all(children: Sequence[Child], grace_s: float) -> None:
    """SIGTERM to all, and SIGKILL to those still running after ``grace_s``, or at once on KeyboardInterrupt.

    All have ended and are reaped when this returns.
    """
    for child in children:
        child.terminate()
    end = time.monotonic() + grace_s
    try:
        for child in children:
            child.wait(end - time.monotonic())
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.wait(10.0)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
