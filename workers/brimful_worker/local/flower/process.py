"""Flower beside a local fleet: ``celery -A brimful flower`` in a child process without the API key."""

from __future__ import annotations

import time
from pathlib import Path

from brimful.config import Settings
from brimful.errors import SettingError
from brimful_worker.local.processes.child_process import Child
from brimful_worker.local.processes.environment import keyless_environment
from brimful_worker.local.server.valkey import free_port, new_password, port_is_free

_RESTART_S = 5.0


def check_port(settings: Settings) -> None:
    """Raises SettingError if the port asked for is taken."""
    if settings.flower_port and not port_is_free(settings.flower_port):
        raise SettingError(f"port {settings.flower_port} is taken: choose another for Flower with --flower-port")


class FlowerChild:
    """Flower on settings.flower_address, on settings.flower_port or a free port. It always asks for a login."""

    def __init__(self, settings: Settings, directory: Path, logs: Path, owner_fd: int) -> None:
        """``directory``: of the key; Flower's history is there unless the settings name another file."""
        port, address = settings.flower_port or free_port(), settings.flower_address
        self.url = f"http://{'127.0.0.1' if address in ('', '0.0.0.0', '::') else address}:{port}"  # noqa: S104
        password = settings.flower_password.get_secret_value() if settings.flower_password else new_password()
        self.login = (settings.flower_user, password)
        config = Path(__file__).with_name("config.py")
        self.child = Child(
            "flower",
            "celery",
            ["-A", "brimful", "flower", f"--conf={config}", f"--address={address}", f"--port={port}"],
            environment={
                **keyless_environment(settings),
                "BRIMFUL_FLOWER_USER": settings.flower_user,
                "BRIMFUL_FLOWER_PASSWORD": password,
                "BRIMFUL_FLOWER_DB": str(settings.flower_db or directory / "flower"),
                **({"BRIMFUL_METRICS_TOKEN": token.get_secret_value()} if (token := settings.metrics_token) else {}),
            },
            log=logs / "flower.log",
            owner_fd=owner_fd,
            cwd=logs,  # away from the user's .env and flowerconfig.py
        )

    def restart_if_ended(self) -> None:
        """Flower only shows the fleet, so its end is no reason to stop the fleet."""
        self.child.bound_log()
        if not self.child.alive and time.monotonic() - self.child.started_at > _RESTART_S:
            self.child.start()
