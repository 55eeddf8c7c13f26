"""Slots, window and waiting as admission keeps them in Redis, for a run's display."""

from __future__ import annotations

from brimful.config import Settings
from brimful.run.gauges import Gauges


async def fleet_gauges(settings: Settings) -> Gauges | None:
    """None where admission has nothing to say yet."""
    return None
