"""The front door as a child process of a local fleet: ``brimful serve`` on a port of 127.0.0.1."""

from __future__ import annotations

import urllib.error
import urllib.request
from importlib import import_module
from pathlib import Path

from brimful.config import Settings
from brimful.errors import SettingError
from brimful_worker.local.processes.child_process import Child
from brimful_worker.local.processes.environment import worker_environment
from brimful_worker.local.server.valkey import free_port, port_is_free

_HOST = "127.0.0.1"
_ASK_S = 2.0


def check_port(port: int) -> None:
    """Raises SettingError if the port asked for is taken."""
    if port and not port_is_free(port):
        raise SettingError(f"port {port} is taken: choose another for the front door with --serve-port")


class DoorChild:
    """The front door's process, as the fleet that starts it sees it. ``url`` ends in /v1."""

    def __init__(self, settings: Settings, port: int, logs: Path, owner_fd: int, pass_fds: tuple[int, ...]) -> None:
        """``port`` 0 takes a free one, and keeps it when the process is restarted."""
        port = port or free_port()
        self._root = f"http://{_HOST}:{port}"
        self.url = f"{self._root}/v1"
        environment, log = worker_environment(settings), logs / "serve.log"
        self.child = Child(
            "serve", "serve", [str(port)], environment=environment, log=log, owner_fd=owner_fd, pass_fds=pass_fds
        )

    @property
    def ready(self) -> bool:
        """Whether it lets requests in."""
        try:
            with urllib.request.urlopen(f"{self._root}/readyz", timeout=_ASK_S) as answer:  # noqa: S310
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def serve(port: str) -> None:
    """Called in the child process. ``serve`` is a room above this one, so it is imported by its name."""
    import_module("brimful_worker.serve.server").serve(Settings.load(), host=_HOST, port=int(port), ready=print)
