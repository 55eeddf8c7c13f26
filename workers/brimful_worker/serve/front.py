"""The state that the HTTP handlers of one front-door process share: admission, callers, files, batches and figures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from aiohttp import web

from brimful.config import Settings
from brimful.errors import SettingError
from brimful.state.embedded import state_dir
from brimful.state.redis_url import address_of
from brimful_worker.fleet_process import FleetProcess
from brimful_worker.serve.batches.scheduler import BatchScheduler
from brimful_worker.serve.batches.store import Batches
from brimful_worker.serve.callers.batch_accounts import BatchAccounts
from brimful_worker.serve.callers.clock import CallersClock
from brimful_worker.serve.callers.minute import Minutes
from brimful_worker.serve.callers.registry import Registry
from brimful_worker.serve.callers.shares import Shares
from brimful_worker.serve.callers.slots import CallerSlots
from brimful_worker.serve.callers.usage import Usage
from brimful_worker.serve.completions.once import Once
from brimful_worker.serve.files.store import Files
from brimful_worker.serve.gate import Gate
from brimful_worker.serve.page.batches import ShownBatches
from brimful_worker.serve.page.feed import Feed
from brimful_worker.serve.page.recent import Recent
from brimful_worker.serve.rate_headers import RateHeaders


class Front:
    """Holds the parts of one front door.

    It is made when the port is known, since ``brimful status`` shows it. It opens nothing, but makes the folder of
    files and batches. Raises SettingError.
    """

    def __init__(self, settings: Settings, name: str, *, tokens_required: bool = False) -> None:
        """``tokens_required``: even if the fleet has none yet."""
        self.settings = settings
        self.name = name
        self.gate = Gate()
        self.process = FleetProcess(settings, name, concurrency=0, stopping=lambda: self.gate.draining)
        self.once = Once(settings)
        self.usage, clock = Usage(settings.fleet), CallersClock(settings.fleet)
        self.callers = Registry(settings.fleet, self.usage, clock, required=tokens_required)
        self.slots = CallerSlots(settings.fleet, self.callers.named, clock)
        self.minutes = Minutes(settings.fleet, clock)
        self.shares = Shares(settings.fleet, lambda: self.process.key.admission, clock)
        folder = data_folder(settings)
        self.files = Files(folder / "files")
        self.batches = Batches(folder / "batches", settings.serve_keep_s)
        counts = self.usage, self.minutes, clock
        accounts = BatchAccounts(settings.fleet, self.callers, *counts, lambda: self.once.pipeline)
        self.scheduler = BatchScheduler(settings, self.batches, self.files, accounts)
        self.rates = RateHeaders(lambda: self.process.key.admission.window)
        self.recent = Recent()
        self.feed = Feed(
            address_of(settings),
            lambda: self.process.key.settings.key_tag,
            self._state,
            ShownBatches(self.batches, settings.fleet),
        )

    def _state(self) -> dict[str, Any]:
        """What the page shows of this front door."""
        turns = [(*turn.asked_by, turn.sent) for turn in self.gate.turns if turn.asked_by is not None]
        reason = self.gate.reason
        return {
            "name": self.name,
            "refusing": None if reason is None else reason().code,
            "callers": self.recent.callers(turns),
            "failures": self.recent.failures(),
        }


def data_folder(settings: Settings) -> Path:
    """Of files and batches, made with mode 0700. By default, one for each API key. Raises SettingError."""
    if settings.serve_data is None:
        return state_dir(settings.state_dir) / settings.key_tag / "serve"
    folder = settings.serve_data.expanduser().absolute()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(f"BRIMFUL_SERVE_DATA (--data): cannot make {folder}: {error.strerror or error}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise SettingError(f"BRIMFUL_SERVE_DATA (--data): cannot write to {folder}; name a directory of yours")
    return folder


FRONT = web.AppKey("front", Front)
