"""Flower beside the fleet: the ``celery -A brimful flower`` of a process of its own, without the provider's key."""

from __future__ import annotations

import http.client
import time
from pathlib import Path

from brimful.config import Settings
from brimful.errors import SettingError
from brimful_worker.local.processes.environment import keyless_environment
from brimful_worker.local.processes.processes import Child, Lifeline
from brimful_worker.local.server.valkey import free_port, new_password, port_is_free

_AGAIN_S = 5.0


def check_port(settings: Settings) -> None:
    """Raises SettingError where the port asked for is taken."""
    if settings.flower_port and not port_is_free(settings.flower_port):
        raise SettingError(f"port {settings.flower_port} is taken: choose another for Flower with --flower-port")


class FlowerChild:
    """On settings.flower_address and a free port, or settings.flower_port; behind a login always."""

    def __init__(self, settings: Settings, logs: Path, lifeline: Lifeline) -> None:
        self._port = settings.flower_port or free_port()
        self._address = settings.flower_address
        password = settings.flower_password.get_secret_value() if settings.flower_password else new_password()
        self.login = (settings.flower_user, password)
        environment = keyless_environment(settings) | {
            "BRIMFUL_FLOWER_USER": settings.flower_user,
            "BRIMFUL_FLOWER_PASSWORD": password,
        }
        config = Path(__file__).with_name("config.py")
        self.child = Child(
            "flower",
            "celery",
            ["-A", "brimful", "flower", f"--conf={config}", f"--address={self._address}", f"--port={self._port}"],
            environment=environment,
            log=logs / "flower.log",
            lifeline=lifeline,
            cwd=logs,  # away from the user's .env and flowerconfig.py
        )

    @property
    def url(self) -> str:
        host = "127.0.0.1" if self._address in ("", "0.0.0.0", "::") else self._address  # noqa: S104
        return f"http://{host}:{self._port}"

    def start(self) -> None:
        self.child.start()

    def look(self) -> None:
        """Start it again if it ended: it is a window on the fleet, and no reason to stop it."""
        self.child.bound_log()
        if not self.child.alive and time.monotonic() - self.child.started_at > _AGAIN_S:
            self.child.start()

    def ready(self) -> bool:
        """Whether it answers."""
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=1.0)
        try:
            connection.request("GET", "/healthcheck")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
