"""brimful: a fleet of Celery workers that samples LLM completions within one API key's limits.

This package is what a service imports. It never imports the worker's package, aiohttp or Lua. Its names are loaded when
they are first used, so that a command imports only what it needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brimful.celery import app
    from brimful.client.fleet import Fleet
    from brimful.client.fleet_async import AsyncFleet
    from brimful.client.group import Group
    from brimful.client.mapping import Sampled
    from brimful.errors import BrimfulError
    from brimful.outcome import Outcome, Rollout
    from brimful.request import Request
    from brimful.tasks import Handle, sample, shard

__all__ = [
    "AsyncFleet",
    "BrimfulError",
    "Fleet",
    "Group",
    "Handle",
    "Outcome",
    "Request",
    "Rollout",
    "Sampled",
    "app",
    "sample",
    "shard",
]
__version__ = "0.2.0"  # the only place of the number: pyproject.toml reads it here

_HOMES = {
    "AsyncFleet": "client.fleet_async",
    "BrimfulError": "errors",
    "Fleet": "client.fleet",
    "Group": "client.group",
    "Handle": "tasks",
    "Outcome": "outcome",
    "Request": "request",
    "Rollout": "outcome",
    "Sampled": "client.mapping",
    "app": "tasks",  # so that the tasks are registered
    "sample": "tasks",
    "shard": "tasks",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
