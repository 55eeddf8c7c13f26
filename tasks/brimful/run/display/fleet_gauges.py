"""Slots, window and waiting as admission keeps them in Redis, for a run's display."""

from __future__ import annotations

from brimful.config import Settings
from brimful.errors import SettingError
from brimful.run.display.gauges import Gauges
from brimful.state.redis_url import redis_client
from brimful.state.status import Status, read_status_async, tag_in_use


class FleetGauges:
    """Reads one key's figures; which key's, where this machine has none, a fleet that serves but one tells."""

    def __init__(self, settings: Settings) -> None:
        assert settings.redis_url is not None
        self._client = redis_client(settings.redis_url)
        try:
            self._tag: str | None = settings.key_tag
        except SettingError:
            self._tag = None

    async def read(self) -> Gauges | None:
        """None where admission has nothing to say yet. Raises RedisError."""
        tag = self._tag
        if tag is None:
            tag = await tag_in_use(self._client)
            if tag is None:
                return None
        status = await read_status_async(self._client, tag)
        return _gauges(status) if status.slots is not None else None

    async def aclose(self) -> None:
        await self._client.aclose()


def _gauges(status: Status) -> Gauges:
    return Gauges(
        slots_used=status.slots_used,
        slots=status.slots or 0,
        starts_used=status.starts_used,
        starts=status.starts,
        waiting=sum(status.waiting.values()),
        paused_s=status.pause_s,
        pause_reason=status.pause_reason or "",
        workers=len(status.workers),
        window_s=status.window_s,
        next_start_s=status.next_start_s,
    )
