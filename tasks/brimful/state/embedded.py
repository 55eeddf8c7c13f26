"""Where the local hub is: the embedded Valkey that the processes of one user and one key share on one machine.

Only its whereabouts: who starts and ends it is the worker side's affair. A directory per key tag,
``<state_dir>/<key_tag>/``, holds ``hub.json`` (0600) for as long as the server runs.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path

from brimful.errors import RedisUnreachable, SettingError
from brimful.state.probes import connect

HUB_FILE = "hub.json"


@dataclass(frozen=True, slots=True)
class HubInfo:
    """What ``hub.json`` says. ``notice`` is something the user should know, as of data moved aside."""

    port: int
    password: str
    host: str
    """The machine it runs on: a home may be shared by several."""
    keeper: int
    """The keeper's process id."""
    notice: str

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def answers(self) -> bool:
        """Whether it answers a PING within a second: another program may listen on its port by now."""
        try:
            connect(self.url, timeout_s=1.0).close()
        except RedisUnreachable:
            return False
        return True


def state_dir(configured: Path | None = None) -> Path:
    """``configured``, or $XDG_STATE_HOME/brimful, or ~/.local/state/brimful, or a directory of this user's in the
    temporary one; made with mode 0700. Raises SettingError where none can be written."""
    if configured is not None:
        candidates = [configured.expanduser()]
    else:
        home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        candidates = [Path(home) / "brimful", Path(tempfile.gettempdir()) / f"brimful-{os.getuid()}"]
    for candidate in candidates:
        try:
            candidate.mkdir(mode=0o700, parents=True, exist_ok=True)
            # In a directory that everybody writes to, somebody else may have been there first.
            ours = candidate.lstat().st_uid == candidate.stat().st_uid == os.getuid()
            if ours and os.access(candidate, os.W_OK | os.X_OK):
                return candidate.resolve()
        except OSError:
            continue
    raise SettingError(f"cannot write to {candidates[0]}: set BRIMFUL_STATE_DIR to a directory of yours")


def read_hub(directory: Path) -> HubInfo | None:
    """The hub of one key's directory, or None. Whether it is alive is another question: ``answers()``."""
    try:
        raw = json.loads((directory / HUB_FILE).read_text("utf-8"))
        return HubInfo(**{field.name: raw[field.name] for field in fields(HubInfo)})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def running_hubs(configured: Path | None = None) -> dict[str, HubInfo]:
    """This machine's live hubs by key tag."""
    found = {}
    for path in sorted(state_dir(configured).glob(f"*/{HUB_FILE}")):
        info = read_hub(path.parent)
        if info is not None and info.host == socket.gethostname() and info.answers():
            found[path.parent.name] = info
    return found
