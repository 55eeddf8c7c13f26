"""Finds the embedded Valkey that the processes of one user and API key share on a machine.

``<state_dir>/<key_tag>/hub.json`` (0600) exists while the server runs. The worker's package starts and ends it.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
from pathlib import Path
from typing import NamedTuple

from brimful.errors import RedisUnreachable, SettingError
from brimful.runtime.atomic import atomic_write

HUB_FILE = "hub.json"


class EmbeddedServer(NamedTuple):
    """The content of ``hub.json``."""

    port: int
    password: str
    host: str
    """The machine it runs on: several may share a home directory."""
    keeper: int
    """Process id of the keeper, which runs the server."""
    data_loss: str
    """Says where its data was moved if it could not be read."""

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def answers(self) -> bool:
        """Whether it answers a PING within a second: another program may listen on its port by now."""
        from brimful.state.probes import connect  # the keeper, which must start fast, imports this module without redis

        try:
            connect(self.url, timeout_s=1.0).close()
        except RedisUnreachable:
            return False
        return True


def state_dir(configured: Path | None = None) -> Path:
    """The directory for local state, made with mode 0700. Raises SettingError if none can be written.

    ``configured``, or $XDG_STATE_HOME/brimful, or ~/.local/state/brimful, or one in the temporary directory.
    """
    if configured is not None:
        candidates = [configured.expanduser()]
    else:
        home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        candidates = [Path(home) / "brimful", Path(tempfile.gettempdir()) / f"brimful-{os.getuid()}"]
    for candidate in candidates:
        try:
            candidate.mkdir(mode=0o700, parents=True, exist_ok=True)
            # In a directory that everybody can write to, another user may have made it first.
            ours = candidate.lstat().st_uid == candidate.stat().st_uid == os.getuid()
            if ours and os.access(candidate, os.W_OK | os.X_OK):
                return candidate.resolve()
        except OSError:
            continue
    raise SettingError(f"cannot write to {candidates[0]}: set BRIMFUL_STATE_DIR to a directory of yours")


def read_server(directory: Path) -> EmbeddedServer | None:
    """The server of one key's directory, or None. It may have ended: see :meth:`EmbeddedServer.answers`."""
    try:
        raw = json.loads((directory / HUB_FILE).read_text("utf-8"))
        return EmbeddedServer(raw["port"], raw["password"], raw["host"], raw["keeper"], raw["notice"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write_server(directory: Path, server: EmbeddedServer) -> None:
    """Raises FleetError."""
    content = server._asdict()
    content["notice"] = content.pop("data_loss")
    with atomic_write(directory / HUB_FILE) as file:
        file.write(json.dumps(content).encode())


def running_servers(configured: Path | None = None) -> dict[str, EmbeddedServer]:
    """This machine's running servers by key tag."""
    found = {}
    for path in sorted(state_dir(configured).glob(f"*/{HUB_FILE}")):
        server = read_server(path.parent)
        if server is not None and server.host == socket.gethostname() and server.answers():
            found[path.parent.name] = server
    return found
