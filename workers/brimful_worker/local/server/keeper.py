"""The local hub's keeper: a small detached process that owns the embedded Valkey.

``python -m brimful_worker.local.server.keeper DIRECTORY LOCK_FD PORT [--ephemeral]``. It starts the server, tells
its starter
on stdout (one JSON line), restarts the server on the same port and data should it crash, and ends it as soon as nobody
holds ``users.lock`` any more. The lock it was handed open (``keeper.lock``) says that it lives.

Standard library only, so that it is there within milliseconds. Its environment holds no key.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from brimful_worker.local.server.resp import Resp, RespError
from brimful_worker.local.server.valkey import Valkey, free_port, new_password, port_is_free
from brimful_worker.local.server.worth import worth_keeping

POLL_S = 0.2
"""How often it looks whether anybody uses the server, and whether the server lives."""
_RESTARTS = 20
"""Crashes within ``_RESTARTS_S`` that it puts up with."""
_RESTARTS_S = 60.0
_ORPHAN_S = 10.0
_LOG_BYTES = 1_000_000
_OPTIONS = (
    "auto-aof-rewrite-min-size 16mb",
    "aof-load-truncated yes",
    # A corrupt tail is cut; anything worse is moved aside whole, by us, with a message.
    "tcp-backlog 4096",
    "maxclients 20000",
    "loglevel notice",
)
_BAD_DATA = re.compile(r"append.?only|\baof\b|\brdb\b|loading db|unrecoverable", re.IGNORECASE)


class Keeper:
    """One server's life. Every file is in ``directory``."""

    def __init__(self, directory: Path, port: int, *, ephemeral: bool) -> None:
        self.directory = directory
        self._wanted_port = port
        self._ephemeral = ephemeral
        self._notice = ""
        self._stop = False
        self._crashes: list[float] = []
        self._users = os.open(directory / "users.lock", os.O_RDWR | os.O_CREAT, 0o600)
        self._data = os.open(directory / "valkey.lock", os.O_RDWR | os.O_CREAT, 0o600)

    def start(self) -> dict[str, object]:
        """The server is up; returns what the starter is told. Raises FleetError."""
        before = self._before()
        self._end_orphan(before)
        # A crashed keeper's users still know its port and password, so they are kept if possible.
        password = str(before["password"]) if before else new_password()
        port = int(str(before["port"])) if before else 0
        if self._wanted_port:
            port = self._wanted_port
        elif port and not port_is_free(port):
            port = 0
        self._valkey = self._server(port, password)
        self._start_valkey()
        self._write_hub_file()
        # Nobody who used an earlier server is alive: whoever finds the house empty clears the hub file. And what it
        # remembers is whole: an append-only file that was thrown away may have held starts of the last window.
        return {"ok": True, "mark_clean": before is None and not self._notice, "forgot": bool(self._notice)}

    def keep(self) -> None:
        """Returns when nobody uses the server any more, or on SIGTERM; ``users.lock`` is then held by us."""
        while not self._stop:
            try:
                fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return  # a new user waits at the lock until we are gone
            except BlockingIOError:
                pass
            if not self._valkey.alive:
                self._restart()
            time.sleep(POLL_S)

    def end(self) -> None:
        """Save and stop the server; leave no file that is of no use."""
        keep = not self._ephemeral
        if keep and self._valkey.alive:
            try:
                with self._valkey.connect(5.0) as connection:
                    keep = worth_keeping(connection)
                    if keep:
                        _rewrite(connection)
            except (OSError, RespError) as error:
                self.log(f"could not tidy up: {error}")
        self._valkey.stop()
        (self.directory / "hub.json").unlink(missing_ok=True)
        if self._ephemeral:
            shutil.rmtree(self.directory, ignore_errors=True)
        elif not keep:
            shutil.rmtree(self.directory / "valkey", ignore_errors=True)
        self.log("ended")

    def stop(self, *_: object) -> None:
        self._stop = True

    def log(self, message: str) -> None:
        path = self.directory / "keeper.log"
        try:
            if path.exists() and path.stat().st_size > _LOG_BYTES:
                path.replace(path.with_suffix(".log.1"))
            with path.open("a", encoding="utf-8") as log:
                log.write(f"{datetime.now(UTC).isoformat(timespec='milliseconds')} {os.getpid()} {message}\n")
        except OSError:
            pass  # a full disk or a removed directory is no reason to end a server in use

    def _server(self, port: int, password: str) -> Valkey:
        return Valkey(
            self.directory / "valkey",
            port=port,
            password=password,
            appendonly=True,
            options=_OPTIONS,
            pass_fds=(self._data,),
        )

    def _start_valkey(self) -> None:
        """Start; on data that cannot be read, move it aside and start empty; on a port lost to a race, take another."""
        from_scratch = False
        for _ in range(4):
            try:
                self._valkey.start()
            except Exception as error:
                log = self._valkey.log_since_start()
                if not self._wanted_port and "Address already in use" in log and not self._crashes:
                    self._valkey.port = free_port()
                elif not from_scratch and _BAD_DATA.search(log) and self._move_data_aside():
                    from_scratch = True
                else:
                    raise error from None
            else:
                self.log(f"valkey {self._valkey.pid} serves port {self._valkey.port}")
                return
        raise RuntimeError("the embedded Valkey found no port")

    def _restart(self) -> None:
        now = time.monotonic()
        self._crashes = [then for then in self._crashes if then > now - _RESTARTS_S] + [now]
        if len(self._crashes) > _RESTARTS:
            raise RuntimeError(f"the embedded Valkey crashed {len(self._crashes)} times in {_RESTARTS_S:.0f} s")
        self.log("valkey is gone: restarting it on its port and data")
        try:
            self._start_valkey()
        except Exception as error:
            self.log(f"restart failed: {error}")  # the next look tries again
            return
        self._write_hub_file()

    def _move_data_aside(self) -> bool:
        data = self.directory / "valkey" / "appendonlydir"
        if not data.is_dir():
            return False
        aside = self.directory / f"valkey-unreadable-{datetime.now(UTC):%Y%m%dT%H%M%S}"
        data.rename(aside)
        self._notice = (
            f"the embedded Valkey could not read its data; it was moved to {aside} and the hub starts empty: "
            "results that no run had collected yet are sampled again"
        )
        self.log(self._notice)
        return True

    def _before(self) -> dict[str, object] | None:
        """The hub file of a keeper that died without removing it."""
        try:
            raw = json.loads((self.directory / "hub.json").read_text("utf-8"))
            return raw if {"port", "password"} <= raw.keys() else None
        except (OSError, ValueError, AttributeError):
            return None

    def _end_orphan(self, before: dict[str, object] | None) -> None:
        """Where no PDEATHSIG exists a server outlives its keeper; two on the same data would ruin it."""
        end = time.monotonic() + _ORPHAN_S
        while True:
            try:
                fcntl.flock(self._data, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                pass
            if before:
                try:
                    with Resp(int(str(before["port"])), str(before["password"])) as connection:
                        connection.call("SHUTDOWN")
                except (OSError, RespError):
                    pass
            if time.monotonic() > end:
                raise RuntimeError(f"a server of an earlier keeper still uses {self.directory / 'valkey'}")
            time.sleep(0.02)

    def _write_hub_file(self) -> None:
        content = {
            "port": self._valkey.port,
            "password": self._valkey.password,
            "host": socket.gethostname(),
            "keeper": os.getpid(),
            "notice": self._notice,
        }
        new = self.directory / "hub.json.new"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(content, file)
        new.replace(self.directory / "hub.json")


def _rewrite(connection: Resp) -> None:
    """Compact the append-only file: what was consumed, prompts among it, leaves the disk."""
    connection.call("BGREWRITEAOF")
    end = time.monotonic() + 5.0
    while time.monotonic() < end:
        info = str(connection.call("INFO", "persistence"))
        if "aof_rewrite_in_progress:0" in info and "aof_rewrite_scheduled:0" in info:
            return
        time.sleep(0.005)


def main(arguments: list[str]) -> int:
    """Never raises: what went wrong goes to the starter and to keeper.log."""
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
        _tell({"ok": False, "error": str(error)})
        return 1
    _tell(answer)
    try:
        keeper.keep()
    except Exception as error:
        keeper.log(f"gave up: {error}")
        return 1
    finally:
        keeper.end()
    return 0


def _tell(answer: dict[str, object]) -> None:
    """One line to the starter, who may be gone already; then its pipe is closed."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(answer).encode() + b"\n")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
