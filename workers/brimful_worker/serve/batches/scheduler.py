"""Starts batches: those created at this front door, and those of a front door that has died."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time

from brimful.config import Settings
from brimful.errors import FleetError
from brimful.runtime.aio import cancel_and_wait
from brimful_worker.serve.batches.drive import Drive
from brimful_worker.serve.batches.record import Batch
from brimful_worker.serve.batches.store import Batches
from brimful_worker.serve.callers.batch_accounts import BatchAccounts
from brimful_worker.serve.files.store import Files

log = logging.getLogger(__name__)

_LOOK_S = 1.0
"""While there are batches that this front door does not drive: those of another, which may die, or after a fault."""
_IDLE_S = 5.0


class BatchScheduler:
    """Starts the batches of one front-door process. Use it on one event loop."""

    again_s = 10.0
    """Seconds until a batch whose disk has failed is driven again."""

    def __init__(self, settings: Settings, batches: Batches, files: Files, accounts: BatchAccounts) -> None:
        self._settings = settings
        self._batches = batches
        self._files = files
        self._accounts = accounts
        self._drives: dict[str, asyncio.Task[None]] = {}
        self._over: set[str] = set()
        self._not_before: dict[str, float] = {}
        self._places = asyncio.Semaphore(settings.serve_batches)
        self._checking = asyncio.Lock()
        self._wanted = asyncio.Event()

    def look(self) -> None:
        """A batch has been created, or is not driven any more."""
        self._wanted.set()

    async def run(self) -> None:
        """Never returns. Cancelled, it leaves its batches to others."""
        owner, alive = os.pipe()  # the runs watch it, and end when this process does
        try:
            while True:
                self._wanted.clear()
                look_s = _LOOK_S
                try:
                    found = await asyncio.to_thread(self._unfinished)
                    for batch in found:
                        self._take(batch, owner)
                    if not self._not_before and all(batch.id in self._drives for batch in found):
                        look_s = _IDLE_S
                except (OSError, FleetError) as error:
                    log.error("the batches cannot be read: %s", error)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wanted.wait(), look_s)
        finally:
            await cancel_and_wait(self._drives.values())
            os.close(alive)
            os.close(owner)

    def _unfinished(self) -> list[Batch]:
        """The oldest first."""
        found, now = [], time.monotonic()
        for id in self._batches.ids():
            if id in self._over or id in self._drives or self._not_before.get(id, 0.0) > now:
                continue
            if (batch := self._batches.load(id)) is not None:
                if batch.over:
                    self._over.add(id)
                    self._not_before.pop(id, None)
                else:
                    found.append(batch)
        return sorted(found, key=lambda batch: batch.created)

    def _take(self, batch: Batch, owner: int) -> None:
        if (lock := self._batches.lock(batch.id)) is not None:
            task = asyncio.create_task(self._drive(batch.id, lock, owner))
            self._drives[batch.id] = task
            task.add_done_callback(lambda _: self._ended(batch.id))

    def _ended(self, id: str) -> None:
        self._drives.pop(id, None)
        self.look()  # it may be another's to go on with, or this one's after a fault

    async def _drive(self, id: str, lock: int, owner: int) -> None:
        try:
            batch = await asyncio.to_thread(self._batches.load, id)  # as it is under the lock
            if batch is None or batch.over:
                return
            await Drive(
                batch,
                self._batches,
                self._files,
                self._settings,
                places=self._places,
                checking=self._checking,
                accounts=self._accounts,
                lock=lock,
                owner=owner,
            ).run()
        except (OSError, FleetError) as error:
            log.error("batch %s stopped: %s; it is started again in %.0f s", id, error, self.again_s)
            self._not_before[id] = time.monotonic() + self.again_s
        except Exception as error:  # its text may hold a prompt
            name = type(error).__name__
            log.error(
                "batch %s stopped by a fault of brimful (%s); it is started again in %.0f s", id, name, self.again_s
            )
            self._not_before[id] = time.monotonic() + self.again_s
        finally:
            os.close(lock)
