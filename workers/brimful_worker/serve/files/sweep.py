"""Deletes files whose time is over; apart, as it is a task of the process and no request's."""

from __future__ import annotations

import asyncio
import logging
import time

from brimful.errors import FleetError
from brimful_worker.serve.files.store import Files

log = logging.getLogger(__name__)

_EVERY_S = 60.0


async def sweep_files(files: Files) -> None:
    """Never returns."""
    while True:
        try:
            if expired := await asyncio.to_thread(files.sweep, time.time()):
                log.info("%d files have expired", expired)
        except (OSError, FleetError) as error:
            log.warning("expired files cannot be deleted: %s", error)
        await asyncio.sleep(_EVERY_S)
