"""The keeper of the embedded Valkey: a small detached process that runs the server while anybody uses it.

``python -m brimful_worker.local.server.keeper DIRECTORY LOCK_FD PORT [--ephemeral]``. It starts the server and answers
its starter with one JSON line on stdout, restarts a crashed server on the same port and data, and ends when no process
holds ``users.lock``. It inherits ``keeper.lock`` locked, and so holds it for as long as it lives.

Every local run waits for this process to start, so it imports little. Its environment holds no API key.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import select
import shutil
import signal
import socket
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import hiredis

from brimful.errors import FleetError
from brimful.runtime.atomic import atomic_write
from brimful.state.embedded import HUB_FILE, EmbeddedServer, read_server, write_server
from brimful_worker.local.server.valkey import Connection, Valkey, free_port, new_password, port_is_free

_POLL_S = 0.2
"""How often it checks whether the server runs and has users."""
_RESTARTS = 20
"""Failed restarts in a row, after which it gives up; a process that uses the server then starts another keeper."""
_ORPHAN_S = 10.0
_COMPACT_S = 5.0
_OPTIONS = (
    "auto-aof-rewrite-min-size 16mb",
    "aof-load-truncated yes",  # a corrupt tail is cut; unreadable data is moved aside by the keeper
    "tcp-backlog 4096",
    "maxclients 20000",
    "loglevel notice",
)
_BAD_DATA = re.compile(r"append.?only|\baof\b|\brdb\b|loading db|unrecoverable", re.IGNORECASE)


class Keeper:
    """Starts one server, restarts it if it crashes, and stops it. All its files are in ``directory``."""

    def __init__(self, directory: Path, port: int, *, ephemeral: bool) -> None:
        self._stop_read, self._stop_write = os.pipe()
        self._directory = directory
        self._wanted_port = port
        self._ephemeral = ephemeral
        self._data_loss = ""
        """Says where unreadable data was moved, if any was."""
        self._users = os.open(directory / "users.lock", os.O_RDWR | os.O_CREAT, 0o600)
        self._data = os.open(directory / "valkey.lock", os.O_RDWR | os.O_CREAT, 0o600)

    def start(self) -> dict[str, object]:
        """Start the server; returns the answer for the starter. Raises FleetError."""
        previous = read_server(self._directory)  # of a killed keeper
        if previous is None:
            for log in ("keeper.log", "valkey/valkey.log"):
                (self._directory / log).unlink(missing_ok=True)
        self._end_orphan(previous)
        # Users of the killed keeper's server know its port and password: keep both if possible.
        port, password = (previous.port, previous.password) if previous else (0, self._password())
        if self._wanted_port or not port_is_free(port):
            port = self._wanted_port
        self._valkey = Valkey(
            self._directory / "valkey",
            port=port,
            password=password,
            appendonly=True,
            options=_OPTIONS,
            pass_fds=(self._data,),
        )
        self._start_valkey(keep_port=bool(self._wanted_port))
        # ``bless``: the data is complete and no process remembers leases or starts that it lacks, since a keeper that
        # ends without users removes the hub file. An answer's fields are read by programs of every version.
        return {"ok": True, "bless": previous is None and not self._data_loss, "forgot": bool(self._data_loss)}

    def _password(self) -> str:
        """The same at every start: services keep the URL that `brimful up --port` printed."""
        file = self._directory / "password"
        with contextlib.suppress(OSError):
            if password := file.read_text("ascii").strip():
                return password
        password = new_password()
        with atomic_write(file) as out:
            out.write(password.encode())
        return password

    def keep(self) -> None:
        """Returns on SIGTERM, or when nobody uses the server; ``users.lock`` is then held, and new users wait for it.

        Raises FleetError or OSError when a crashed server cannot be restarted.
        """
        failed = 0
        while not select.select([self._stop_read], [], [], _POLL_S)[0]:
            if try_lock(self._users, fcntl.LOCK_EX):
                return
            if self._valkey.alive:
                continue
            self.log("valkey is gone: restarting it on its port and data")
            try:
                self._start_valkey(keep_port=True)
                failed = 0
            except (FleetError, OSError) as error:
                self.log(f"restart failed: {error}")
                failed += 1
                if failed == _RESTARTS:
                    raise

    def stop(self, *_: object) -> None:
        """A signal handler: ``keep`` returns."""
        os.write(self._stop_write, b"\0")

    def end(self) -> None:
        """Save the data and stop the server."""
        # The last user waits for our end with the lock held alone. If it is shared, users outlive us (SIGTERM to all
        # processes of a session): the hub file stays, so that the next keeper knows.
        in_use = not try_lock(self._users, fcntl.LOCK_EX) and try_lock(self._users, fcntl.LOCK_SH)
        if not self._ephemeral and self._valkey.alive:
            try:
                self._compact()
            except (OSError, hiredis.ReplyError) as error:
                self.log(f"could not compact the append-only file: {error}")
        self._valkey.stop()
        if not in_use:
            (self._directory / HUB_FILE).unlink(missing_ok=True)
            if self._ephemeral:
                # Renamed first: the last user looks for keeper.lock meanwhile, and would make it again.
                ended = self._directory.with_name(f"{self._directory.name}.ended-{os.getpid()}")
                with contextlib.suppress(OSError):
                    shutil.rmtree(self._directory.rename(ended), ignore_errors=True)
        self.log("ended")

    def log(self, message: str) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        with (
            contextlib.suppress(OSError),  # a full disk or a removed directory must not end a server in use
            (self._directory / "keeper.log").open("a", encoding="utf-8") as log,
        ):
            log.write(f"{now} {os.getpid()} {message}\n")

    def _start_valkey(self, *, keep_port: bool) -> None:
        """Start the server and write the hub file. Takes another port if a free one was taken in the meantime, and
        starts empty if the data cannot be read."""
        while not self._valkey.alive:
            try:
                self._valkey.start()
            except FleetError:
                log = self._valkey.log_since_start()
                if not keep_port and "Address already in use" in log:
                    self._valkey.port = free_port()
                elif self._data_loss or not _BAD_DATA.search(log) or not self._move_data_aside():
                    raise
        self.log(f"valkey {self._valkey.pid} serves port {self._valkey.port}")
        assert self._valkey.password is not None
        server = EmbeddedServer(
            self._valkey.port, self._valkey.password, socket.gethostname(), os.getpid(), self._data_loss
        )
        if server != read_server(self._directory):
            write_server(self._directory, server)

    def _move_data_aside(self) -> bool:
        data = self._directory / "valkey" / "appendonlydir"
        if not data.is_dir():
            return False
        aside = self._directory / f"valkey-unreadable-{datetime.now(UTC):%Y%m%dT%H%M%S}"
        data.rename(aside)
        self._data_loss = (
            f"the embedded Valkey could not read its data and starts empty; the data was moved to {aside}. "
            "Results that no run had collected yet are sampled again"
        )
        self.log(self._data_loss)
        return True

    def _end_orphan(self, previous: EmbeddedServer | None) -> None:
        """Shut down a server that outlived its keeper: two servers on the same data would ruin it."""
        end = time.monotonic() + _ORPHAN_S
        while not try_lock(self._data, fcntl.LOCK_EX):  # the server inherits this lock
            if previous:
                with (
                    contextlib.suppress(OSError, hiredis.ReplyError),
                    contextlib.closing(Connection(previous.port, previous.password)) as connection,
                ):
                    connection.call("SHUTDOWN")
            if time.monotonic() > end:
                raise FleetError(f"a server of an earlier keeper still uses {self._directory / 'valkey'}")
            time.sleep(0.02)

    def _compact(self) -> None:
        """Rewrite the append-only file, so that consumed messages, which hold prompts, leave the disk."""
        with contextlib.closing(Connection(self._valkey.port, self._valkey.password, 5.0)) as connection:
            connection.call("BGREWRITEAOF")
            end = time.monotonic() + _COMPACT_S
            while time.monotonic() < end:
                info = str(connection.call("INFO", "persistence"))
                if "aof_rewrite_in_progress:0" in info and "aof_rewrite_scheduled:0" in info:
                    return
                time.sleep(0.005)


def try_lock(descriptor: int, kind: int) -> bool:
    """flock, without waiting."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def main(arguments: list[str]) -> int:
    """Returns the exit code. Errors go to the starter and to keeper.log."""
    os.umask(0o077)
    directory, port, ephemeral = Path(arguments[0]), int(arguments[2]), "--ephemeral" in arguments
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(ignored, signal.SIG_IGN)
    keeper = Keeper(directory, port, ephemeral=ephemeral)
    signal.signal(signal.SIGTERM, keeper.stop)
    try:
        answer = keeper.start()
    except Exception as error:
        keeper.log(f"start failed: {error}")
        _answer({"ok": False, "error": str(error)})
        return 1
    _answer(answer)
    try:
        keeper.keep()
    except Exception as error:
        keeper.log(f"gave up: {error}")
        return 1
    finally:
        keeper.end()
    return 0


def _answer(answer: dict[str, object]) -> None:
    """Write one line to the starter, who may have ended, and close the pipe."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(answer).encode() + b"\n")
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
