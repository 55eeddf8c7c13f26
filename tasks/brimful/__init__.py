"""brimful: a fleet of Celery workers that samples LLM completions with one API key.

This package is what a service imports; it knows nothing of workers, aiohttp or Lua.
"""

from brimful.celery import app
from brimful.errors import BrimfulError
from brimful.fleet import AsyncFleet, Fleet
from brimful.mapping import Sampled
from brimful.outcome import Outcome, Rollout
from brimful.request import Request
from brimful.tasks import sample, shard

__all__ = [
    "AsyncFleet",
    "BrimfulError",
    "Fleet",
    "Outcome",
    "Request",
    "Rollout",
    "Sampled",
    "app",
    "sample",
    "shard",
]
__version__ = "0.1.0"
