"""Deletes expired files and batches, in the background."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol

from brimful.errors import FleetError

log = logging.getLogger(__name__)

_EVERY_S = 60.0


class ExpiringStore(Protocol):
    def delete_expired(self, now: float) -> int:
        """Returns the number of things that have expired. Raises OSError and FleetError."""


async def delete_expired(*stores: ExpiringStore) -> None:
    """Never returns."""
    while True:
        for store in stores:
            try:
                if expired := await asyncio.to_thread(store.delete_expired, time.time()):
                    log.info("%d %s have expired", expired, type(store).__name__.lower())
            except (OSError, FleetError) as error:
                log.warning("what has expired cannot be deleted: %s", error)
        await asyncio.sleep(_EVERY_S)
