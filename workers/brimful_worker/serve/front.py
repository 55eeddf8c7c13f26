"""What the handlers of one process share."""

from __future__ import annotations

from aiohttp import web

from brimful.config import Settings
from brimful_worker.fleet_process import FleetProcess
from brimful_worker.serve.callers.registry import Registry
from brimful_worker.serve.completions.once import Once
from brimful_worker.serve.gate import Gate
from brimful_worker.serve.rate_headers import RateHeaders


class Front:
    """Made when the port is known, since ``brimful status`` shows it. Raises SettingError; opens nothing."""

    def __init__(self, settings: Settings, name: str, *, tokens_required: bool = False) -> None:
        """``tokens_required``: even if the fleet has none yet."""
        self.settings = settings
        self.gate = Gate()
        self.process = FleetProcess(settings, name, places=0, stopping=lambda: self.gate.draining)
        self.once = Once(settings)
        self.callers = Registry(settings.fleet, required=tokens_required)
        self.rates = RateHeaders(lambda: self.process.key.admission.status())


FRONT = web.AppKey("front", Front)
