"""The embedded Valkey that all local runs of one user and API key share on a machine.

Each process that uses it holds ``users.lock`` shared, which even kill -9 releases; child processes that need the server
inherit the lock. The first user starts the keeper, the process that runs the server, and hands it ``keeper.lock``
locked: two keepers are never started, and a dead one never seems alive. The last user ends the keeper.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from brimful.errors import FleetError, SettingError
from brimful.state.embedded import EmbeddedServer, read_server
from brimful_worker.local.server.keeper import try_lock
from brimful_worker.local.server.valkey import port_is_free

log = logging.getLogger(__name__)

_OPEN_S = 30.0
_CLOSE_S = 5.0
_LOOK_S = 0.01


class SharedValkey:
    """One process's use of the shared server. Call :meth:`open` and :meth:`close`, or use it as a context manager.

    ``directory`` holds the files of one API key's server.
    """

    def __init__(self, directory: Path, *, port: int = 0, ephemeral: bool = False) -> None:
        """``port`` 0 takes a free one; ``ephemeral``: the last user's end deletes the directory."""
        self._directory = directory
        self._port = port
        self._ephemeral = ephemeral
        self._users: int | None = None
        self._server: EmbeddedServer | None = None
        self.keeper: int | None = None
        """The keeper's pid, if this process has started it."""
        self.memory_complete = False
        """This process started the server, its data is complete, and no process remembers more: admission need not wait
        for other processes to report their leases."""
        self.memory_lost = False
        """This process started the server, which could not read its data: the starts of the last window are unknown."""

    @property
    def server(self) -> EmbeddedServer:
        assert self._server is not None, "not open"
        return self._server

    @property
    def lock_fd(self) -> int:
        """A descriptor for child processes to inherit: the server stays while they live."""
        assert self._users is not None, "not open"
        return self._users

    def open(self) -> None:
        """Join the running server, or start one. Raises SettingError (the port) or FleetError."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        end = time.monotonic() + _OPEN_S
        self._users = os.open(self._directory / "users.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            while not try_lock(self._users, fcntl.LOCK_SH):
                _wait(end, "end")  # held alone by a keeper that ends, or by the user that ends it
            self._server = self._start_or_join(end)
            if self._port and self.server.port != self._port:
                raise SettingError(
                    f"the embedded Valkey of this key already runs on port {self.server.port}: omit --port to use it"
                )
        except BaseException:
            self.close()
            raise

    def revive(self) -> bool:
        """Start another keeper if the old one was killed; returns whether it did. The port stays if it is free."""
        keeper_lock = self._try_keeper_lock()
        if keeper_lock is None:
            return False
        log.warning("the keeper of the embedded Valkey is gone: starting another")
        self._server = self._start(keeper_lock)
        return True

    def close(self) -> None:
        """Leave. The last user ends keeper and server before this returns."""
        if self._users is None:
            return
        users, self._users = self._users, None
        try:
            # Only the last user gets the lock alone; new users then wait until the keeper has ended.
            if self._server is not None and try_lock(users, fcntl.LOCK_EX):
                self._end_keeper(time.monotonic() + _CLOSE_S)
        finally:
            os.close(users)

    def __enter__(self) -> SharedValkey:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end_keeper(self, end: float) -> None:
        try:
            while (keeper_lock := self._try_keeper_lock()) is None:
                server = read_server(self._directory)
                if server is not None and server.host == socket.gethostname():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(server.keeper, signal.SIGTERM)
                if time.monotonic() > end:
                    log.warning("the keeper of the embedded Valkey is slow to end")
                    return
                time.sleep(_LOOK_S)
            os.close(keeper_lock)
        except FileNotFoundError:
            return  # the keeper has deleted its ephemeral directory

    def _start_or_join(self, end: float) -> EmbeddedServer:
        while (keeper_lock := self._try_keeper_lock()) is None:
            server = read_server(self._directory)
            if server is not None and server.host != socket.gethostname():
                raise FleetError(
                    f"the embedded Valkey of this API key runs on {server.host}, which shares {self._directory}: set "
                    "BRIMFUL_REDIS_URL to one Redis for all machines, since the limits are counted in one place"
                )
            if server is not None and server.answers():
                return server
            _wait(end, f"answer ({self._directory}/keeper.log)")
        return self._start(keeper_lock)

    def _try_keeper_lock(self) -> int | None:
        descriptor = os.open(self._directory / "keeper.lock", os.O_RDWR | os.O_CREAT, 0o600)
        if try_lock(descriptor, fcntl.LOCK_EX):
            return descriptor
        os.close(descriptor)
        return None

    def _start(self, keeper_lock: int) -> EmbeddedServer:
        """Start a keeper, which inherits ``keeper_lock``."""
        command = [sys.executable, "-m", "brimful_worker.local.server.keeper", str(self._directory), str(keeper_lock)]
        try:
            if self._port and not port_is_free(self._port):
                raise SettingError(f"port {self._port} is taken: choose another with --port, or omit it")
            keeper = subprocess.Popen(
                [*command, str(self._port), *(["--ephemeral"] if self._ephemeral else [])],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=_bare_environment(),
                cwd="/",
                start_new_session=True,
                pass_fds=(keeper_lock,),
            )
        finally:
            os.close(keeper_lock)
        assert keeper.stdout is not None
        with keeper.stdout as pipe:
            readable, _, _ = select.select([pipe], [], [], _OPEN_S)
            line = pipe.readline() if readable else b""
        self.keeper = keeper.pid
        # It outlives this process by design; if it ends earlier, the thread reaps it.
        threading.Thread(target=keeper.wait, name="brimful-keeper-reaper", daemon=True).start()
        try:
            answer = json.loads(line)
        except ValueError:
            answer = {"ok": False, "error": "its keeper gave no answer"}
        server = read_server(self._directory) if answer["ok"] else None
        if server is None:
            why = answer.get("error", "it ended at once")
            raise FleetError(f"the embedded Valkey did not start: {why} (see {self._directory}/keeper.log)")
        self.memory_complete, self.memory_lost = bool(answer["bless"]), bool(answer["forgot"])
        return server


def _wait(end: float, what: str) -> None:
    if time.monotonic() > end:
        raise FleetError(f"waited {_OPEN_S:.0f} s for the embedded Valkey to {what}; is one of its processes stopped?")
    time.sleep(_LOOK_S)


def _bare_environment() -> dict[str, str]:
    """What the keeper needs to find Python and its packages; no API key."""
    names = ("PATH", "HOME", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "TMPDIR", "LD_LIBRARY_PATH")
    return {**{name: os.environ[name] for name in names if name in os.environ}, "LC_ALL": "C.UTF-8"}
