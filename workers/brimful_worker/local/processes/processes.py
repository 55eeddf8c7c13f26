"""Child processes of a local fleet: each with a log of its own, and none that outlives its owner.

The owner holds the write end of a pipe, the *lifeline*; every child watches the read end (:mod:`.child`) and ends
when it closes. That holds for kill -9 of the owner too, on every Unix, whichever thread started the child.
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


class Lifeline:
    """A pipe that closes when this process ends."""

    def __init__(self) -> None:
        self.read_fd, self._write_fd = os.pipe()  # neither is inherited unless passed on

    def close(self) -> None:
        os.close(self.read_fd)
        os.close(self._write_fd)


class Child:
    """One process: ``python -m brimful_worker.local.processes.child FD ROLE ARGUMENT…``. It may be started again
    when it ended.

    ``environment`` is all of it; secrets come this way, never in ``arguments``.
    """

    def __init__(
        self,
        name: str,
        role: str,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path,
        lifeline: Lifeline,
        pass_fds: tuple[int, ...] = (),
        cwd: Path | None = None,
    ) -> None:
        self.name = name
        self.log = log
        fd = lifeline.read_fd
        self._command = [sys.executable, "-m", "brimful_worker.local.processes.child", str(fd), role, *arguments]
        self._environment = dict(environment)
        self._pass_fds = (fd, *pass_fds)
        self._cwd = cwd
        self._process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        """time.monotonic()"""

    def start(self, *, answers: bool = False) -> IO[bytes] | None:
        """Start it; with ``answers`` its stdout is returned to be read, else it goes to the log."""
        with open(self.log, "ab", opener=_private) as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if answers else log,
                stderr=log,
                env=self._environment,
                cwd=self._cwd,
                start_new_session=True,  # a terminal's Ctrl-C is the owner's; it tells its children itself
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
        """SIGTERM; SIGCONT too, since a stopped process would never see it."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def wait(self, timeout: float) -> bool:
        """Whether it has ended within ``timeout`` seconds."""
        if self._process is None:
            return True
        try:
            self._process.wait(max(0.0, timeout))
        except subprocess.TimeoutExpired:
            return False
        return True

    def log_tail(self, lines: int = 12) -> str:
        """The last lines of its log."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                return "\n".join(log.read().decode("utf-8", "replace").splitlines()[-lines:])
        except OSError:
            return ""

    def bound_log(self) -> None:
        """Empty a log that has grown past 16 MiB; its end is kept in ``.1``."""
        try:
            if self.log.stat().st_size > _LOG_BYTES:
                self.log.with_suffix(".log.1").write_text(self.log_tail(200) + "\n", "utf-8")
                os.truncate(self.log, 0)  # the child appends, so it goes on at the new end
        except OSError:
            pass

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)


def stop_all(children: Sequence[Child], grace_s: float) -> list[Child]:
    """SIGTERM to all, SIGKILL to those that are left after ``grace_s`` or at once on KeyboardInterrupt.

    Returns those that had to be killed. All have ended and been waited for when this returns.
    """
    for child in children:
        child.terminate()
    end = time.monotonic() + grace_s
    try:
        for child in children:
            child.wait(end - time.monotonic())
    finally:
        killed = [child for child in children if child.alive]
        for child in killed:
            child.kill()
        for child in killed:
            child.wait(10.0)
    return killed


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
