"""A process's share in the local hub: one embedded Valkey per user, machine and key, for all that run at once.

A user holds ``users.lock`` shared for as long as it lives, so that even kill -9 gives it back; children that should
keep the server up too inherit ``lock_fd``. The first user starts the keeper and hands it ``keeper.lock`` open, so there
is no moment in which two are started, or in which one that died still seems to live.
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
from types import TracebackType

from brimful.errors import FleetError, SettingError
from brimful.state.embedded import HubInfo, read_hub
from brimful_worker.local.server.valkey import port_is_free

log = logging.getLogger(__name__)

_OPEN_S = 30.0
_CLOSE_S = 5.0
_LOOK_S = 0.01


class Hub:
    """``open``/``close``, or a context manager. ``directory`` is one key's."""

    def __init__(self, directory: Path, *, port: int = 0, ephemeral: bool = False) -> None:
        """``port`` 0 takes a free one; ``ephemeral``: the directory goes when its last user does."""
        self._directory = directory
        self._port = port
        self._ephemeral = ephemeral
        self._users: int | None = None
        self._info: HubInfo | None = None
        self.mark_clean = False
        """The server that this process started knows all there is to know, since nobody alive used an earlier one:
        admission need not wait for others to come back with their leases."""
        self.forgot = False
        """It could not read its data: what was started in the last window is not known."""

    @property
    def url(self) -> str:
        return self.info.url

    @property
    def info(self) -> HubInfo:
        assert self._info is not None, "not open"
        return self._info

    @property
    def lock_fd(self) -> int:
        """To be inherited by children for whom the server is to stay."""
        assert self._users is not None, "not open"
        return self._users

    def open(self) -> None:
        """Join the hub, or start it. Raises SettingError (a port that is taken) or FleetError."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        end = time.monotonic() + _OPEN_S
        self._users = os.open(self._directory / "users.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            keeper_lock = self._become_user(end)
            self._info = self._start_or_join(keeper_lock, end)
            if self._port and self._info.port != self._port:
                raise SettingError(
                    f"this key's local hub already runs on port {self._info.port}: leave --port out to join it"
                )
        except BaseException:
            self.close()
            raise

    def revive(self) -> bool:
        """Start a new keeper where the old one was killed. The port stays if it can; returns whether it did so."""
        keeper_lock = self._try_keeper_lock()
        if keeper_lock is None:
            return False
        log.warning("the local hub's keeper is gone: starting another")
        self._info = self._start(keeper_lock)
        return True

    def close(self) -> None:
        """Give the share back. The last user sees to it that server and keeper are gone before this returns."""
        if self._users is None:
            return
        users, self._users = self._users, None
        try:
            # Whoever can hold the lock alone is the last; newcomers wait at it until the house is empty.
            if self._info is not None and _try_lock(users, fcntl.LOCK_EX):
                with contextlib.suppress(FileNotFoundError):  # an ephemeral hub takes its directory with it
                    self._end_keeper(time.monotonic() + _CLOSE_S)
        finally:
            os.close(users)

    def _end_keeper(self, end: float) -> None:
        while (keeper_lock := self._try_keeper_lock()) is None:
            info = read_hub(self._directory)
            if info is not None and info.host == socket.gethostname():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(info.keeper, signal.SIGTERM)
            if time.monotonic() > end:
                log.warning("the local hub's keeper is slow to end; it will when it can")
                return
            time.sleep(_LOOK_S)
        os.close(keeper_lock)

    def __enter__(self) -> Hub:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _become_user(self, end: float) -> int | None:
        """Hold ``users.lock`` shared. Returns ``keeper.lock`` if the house was found empty, keeper and all."""
        keeper_lock = None
        assert self._users is not None
        while True:
            if _try_lock(self._users, fcntl.LOCK_EX):
                # Nobody else uses the hub. If no keeper does either, a hub file left over has no users who remember it.
                keeper_lock = self._try_keeper_lock()
                if keeper_lock is not None:
                    (self._directory / "hub.json").unlink(missing_ok=True)
            # A keeper that is just ending holds the lock for some tenths of a second.
            while not _try_lock(self._users, fcntl.LOCK_SH):
                _wait(end, f"the local hub in {self._directory} to end")
            return keeper_lock

    def _start_or_join(self, keeper_lock: int | None, end: float) -> HubInfo:
        while True:
            keeper_lock = keeper_lock if keeper_lock is not None else self._try_keeper_lock()
            if keeper_lock is not None:
                return self._start(keeper_lock)
            info = read_hub(self._directory)
            if info is not None:
                if info.host != socket.gethostname():
                    raise FleetError(
                        f"the local hub of this key runs on {info.host}, which shares {self._directory}: set "
                        "BRIMFUL_REDIS_URL to one Redis for all machines, since limits are kept in one place"
                    )
                if info.answers():
                    return info
            _wait(end, f"the local hub in {self._directory} to answer")

    def _try_keeper_lock(self) -> int | None:
        descriptor = os.open(self._directory / "keeper.lock", os.O_RDWR | os.O_CREAT, 0o600)
        if _try_lock(descriptor, fcntl.LOCK_EX):
            return descriptor
        os.close(descriptor)
        return None

    def _start(self, keeper_lock: int) -> HubInfo:
        """Start the keeper with ``keeper.lock``, which is ours and becomes its own."""
        command = [sys.executable, "-m", "brimful_worker.local.server.keeper", str(self._directory), str(keeper_lock)]
        try:
            if self._port and not port_is_free(self._port):
                raise SettingError(f"port {self._port} is taken: choose another with --port, or leave it out")
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
        _disown(keeper)
        try:
            answer = json.loads(line)
        except ValueError:
            answer = {"ok": False, "error": "its keeper gave no answer"}
        if not answer["ok"]:
            raise FleetError(f"the local hub did not start: {answer['error']} (see {self._directory}/keeper.log)")
        info = read_hub(self._directory)
        if info is None:
            raise FleetError(f"the local hub ended as soon as it was up (see {self._directory}/keeper.log)")
        self.mark_clean, self.forgot = bool(answer["mark_clean"]), bool(answer["forgot"])
        return info


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait(end: float, what: str) -> None:
    if time.monotonic() > end:
        raise FleetError(f"waited {_OPEN_S:.0f} s for {what}; is a process there stopped?")
    time.sleep(_LOOK_S)


def _bare_environment() -> dict[str, str]:
    """What the keeper needs to find Python and its packages, and no key."""
    names = ("PATH", "HOME", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "TMPDIR", "LD_LIBRARY_PATH")
    return {**{name: os.environ[name] for name in names if name in os.environ}, "LC_ALL": "C.UTF-8"}


def _disown(keeper: subprocess.Popen[bytes]) -> None:
    """It outlives us by design; if it ends before we do, it must not stay a zombie."""
    threading.Thread(target=keeper.wait, name="brimful-keeper-reaper", daemon=True).start()
