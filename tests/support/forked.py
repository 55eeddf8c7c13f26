"""Processes that are forked from a template, which has imported already what ``python -m MODULE`` would import.

The imports of the command line or of a gateway take half a second of CPU, and tests start hundreds of them. Each is a
process of its own, with its own environment, directory, streams, signals and exit code. Two things differ: ``ps`` shows
the template's command line, and the imports cannot fail. So each command and server also has a test that starts it in a
new interpreter. Each of pytest's processes starts one template, when it first needs it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NoReturn

TESTS = Path(__file__).parents[1]
_IMPORTED = (
    *("aiohttp.web", "redis.asyncio", "uvloop", "kombu.transport.redis"),
    *(f"celery.{name}" for name in ("app.amqp", "app.control", "backends.redis", "events", "loaders.app")),
    *(f"brimful.cli.{name}" for name in ("commands", "doctor", "limits", "report", "run", "runs", "status", "up")),
    *("brimful.cli.validate", "brimful.dispatch.driver", "brimful.run.launch", "brimful.run.report"),
    *("brimful.run.validate", "brimful.tasks", "brimful_worker.admission", "brimful_worker.gateway"),
    *("brimful_worker.local.fleet", "brimful_worker.local.server.shared"),
)
_MESSAGE = 2**20
_INTERPRETERS = ("PYTHON", "LC_", "LANG", "TZ")
"""Variables that begin so have their effect while an interpreter starts."""


class Forked:
    """``python -m MODULE ARGUMENTS`` with the interface of :class:`subprocess.Popen`, for text.

    ``stdin``, ``stdout`` and ``stderr`` are file descriptors, ``subprocess.PIPE``, ``DEVNULL`` or, for the last,
    ``STDOUT``.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        env: Mapping[str, str],
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.STDOUT,
        new_session: bool = False,
    ) -> None:
        self.returncode: int | None = None
        self.stdin: IO[str] | None = None
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None
        ours, theirs = socket.socketpair()
        self._status = ours
        asked = {
            "module": module,
            "arguments": arguments,
            "env": dict(env),
            "cwd": os.getcwd(),
            "new_session": new_session,
            "hangup": signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN,
        }
        with contextlib.ExitStack() as stack:
            stack.enter_context(theirs)
            fds = [self._stream(stack, "stdin", stdin), self._stream(stack, "stdout", stdout)]
            fds.append(fds[1] if stderr == subprocess.STDOUT else self._stream(stack, "stderr", stderr))
            socket.send_fds(_template(), [json.dumps(asked).encode()], [*fds, theirs.fileno()])
        self.pid = int(self._received())

    def _stream(self, stack: contextlib.ExitStack, name: str, given: int) -> int:
        """The child's end, which is closed with ``stack``."""
        if given >= 0:
            return given
        if given == subprocess.DEVNULL:
            return stack.enter_context(open(os.devnull, "r+b")).fileno()
        read, write = os.pipe()
        ours, theirs = (write, read) if name == "stdin" else (read, write)
        stack.callback(os.close, theirs)
        setattr(self, name, os.fdopen(ours, "w" if name == "stdin" else "r", encoding="utf-8"))
        return theirs

    def _received(self) -> bytes:
        data = self._status.recv(16)
        assert data, "the template of processes has ended"
        return data

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.returncode = int(self._received())
            self._status.close()  # until now it was a zombie
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not select.select([self._status], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("forked", timeout or 0)
        found = self.poll()
        assert found is not None
        return found

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:
        """All of its stdout and stderr, once it has ended. May be called again after TimeoutExpired."""
        if self.stdin is not None:
            with self.stdin as file:
                file.write(input or "")
        ends = None if timeout is None else time.monotonic() + timeout
        for thread, _ in self._readers:
            thread.join(None if ends is None else max(ends - time.monotonic(), 0))
            if thread.is_alive():
                raise subprocess.TimeoutExpired("forked", timeout or 0)
        self.wait(None if ends is None else max(ends - time.monotonic(), 0))
        out, err = ("".join(read) for _, read in self._readers)
        return out, err

    @functools.cached_property
    def _readers(self) -> list[tuple[threading.Thread, list[str]]]:
        found = []
        for file in (self.stdout, self.stderr):
            read: list[str] = []
            thread = threading.Thread(target=_read, args=(file, read), daemon=True)
            thread.start()
            found.append((thread, read))
        return found


def can_fork(env: Mapping[str, str]) -> bool:
    """Whether a process with this environment may be forked: not if it sets up its interpreter otherwise."""
    return all(os.environ.get(name) == value for name, value in env.items() if name.startswith(_INTERPRETERS))


def forked(
    module: str, *arguments: str, env: Mapping[str, str], stdin: str | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m MODULE ARGUMENTS`` to its end."""
    process = Forked(
        module,
        *arguments,
        env=env,
        stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        out, err = process.communicate(stdin, timeout)
    finally:
        process.kill()
        process.wait()
        for file in (process.stdout, process.stderr):
            assert file is not None
            file.close()
    return subprocess.CompletedProcess([module, *arguments], process.wait(), out, err)


def _read(file: IO[str] | None, read: list[str]) -> None:
    if file is not None:
        read.append(file.read())


@functools.cache
def _template() -> socket.socket:
    """The socket to the template, which ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    paths = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "support.forked", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    @atexit.register
    def end() -> None:
        ours.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    return ours


class _Template:
    """Forks what it is asked for, and reports the exit codes."""

    def __init__(self, asks: socket.socket) -> None:
        self._asks = asks
        self._ready = selectors.DefaultSelector()
        self._ready.register(asks, selectors.EVENT_READ)

    def serve(self) -> None:
        """Returns when the owner has ended; in a new process it does not return."""
        while True:
            for key, _ in self._ready.select():
                if key.fileobj is not self._asks:
                    self._ready.unregister(key.fileobj)
                    key.data(key.fileobj)
                elif not self._fork():
                    return

    def _fork(self) -> bool:
        data, fds, _, _ = socket.recv_fds(self._asks, _MESSAGE, 4)
        if not data:
            return False
        if not (pid := os.fork()):
            _become(json.loads(data), fds[:3], fds[3])
        status = socket.socket(fileno=fds.pop())
        for fd in fds:
            os.close(fd)
        self._ready.register(os.pidfd_open(pid), selectors.EVENT_READ, functools.partial(self._ended, pid, status))
        return True

    def _ended(self, pid: int, status: socket.socket, pidfd: int) -> None:
        """Report its exit code. It stays a zombie until its owner has read that: its number is nobody else's."""
        os.close(pidfd)
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert found is not None
        with contextlib.suppress(OSError):
            status.sendall(str(found.si_status if found.si_code == os.CLD_EXITED else -found.si_status).encode())
        self._ready.register(status, selectors.EVENT_READ, functools.partial(self._reap, pid))

    def _reap(self, pid: int, status: socket.socket) -> None:
        status.close()
        os.waitpid(pid, 0)


def _become(asked: dict[str, Any], fds: list[int], status: int) -> NoReturn:
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
    if asked["new_session"]:
        os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_DFL if asked["hangup"] else signal.SIG_IGN)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.path[0] = asked["cwd"]
    sys.argv = ["", *asked["arguments"]]
    os.dup2(status, 3)
    os.closerange(4, 1 + max(map(int, os.listdir("/proc/self/fd"))))
    os.write(3, str(os.getpid()).encode())  # from now on its owner may send signals to it
    os.close(3)
    runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)
    sys.exit()


def _main(asks: socket.socket) -> None:
    import gc

    for name in _IMPORTED:
        importlib.import_module(name)
    assert threading.active_count() == 1, "a process that is forked has no other threads"
    gc.collect()
    gc.freeze()
    _Template(asks).serve()


if __name__ == "__main__":
    _main(socket.socket(fileno=int(sys.argv[1])))
