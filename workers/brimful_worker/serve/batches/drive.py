"""Drives one batch from its creation to its end, in the front door that holds its lock."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable

from brimful.config import Settings
from brimful.errors import ExitCode
from brimful.runtime.aio import cancel_and_wait
from brimful.state.redis_retry import REDIS_ERRORS
from brimful_worker.serve.batches.batch_pace import BatchPace
from brimful_worker.serve.batches.check import check
from brimful_worker.serve.batches.process import RunProcess
from brimful_worker.serve.batches.record import Batch, Ending, Fault
from brimful_worker.serve.batches.results import publish
from brimful_worker.serve.batches.run_files import Progress, RunFiles
from brimful_worker.serve.batches.store import UPLOAD, Batches
from brimful_worker.serve.callers.batch_accounts import LEASE_S, BatchAccounts
from brimful_worker.serve.callers.minute import line_id
from brimful_worker.serve.files.store import Files

log = logging.getLogger(__name__)

_LOOK_S = 0.3
_FIRST_PAUSE_S = 1.0
_MOST_PAUSE_S = 60.0


class Drive:
    """Drives one batch. Call :meth:`run` once."""

    most_refusals = 3
    """Tries that end because the input or a setting is wrong, which another try seldom mends."""

    def __init__(
        self,
        batch: Batch,
        batches: Batches,
        files: Files,
        settings: Settings,
        *,
        places: asyncio.Semaphore,
        checking: asyncio.Lock,
        accounts: BatchAccounts,
        lock: int,
        owner: int,
    ) -> None:
        """``places``: for runs. ``checking``: held while a file is checked. ``accounts``: of callers.
        ``lock``, ``owner``: for RunProcess."""
        self._batch = batch
        self._batches = batches
        self._files = files
        self._settings = settings
        self._places = places
        self._checking = checking
        self._accounts = accounts
        self._descriptors = {"lock": lock, "owner": owner}
        self._folder = batches.of_batch(batch.id)
        self._run = RunFiles(self._folder)
        self._refusals = 0

    async def run(self) -> None:
        """From wherever the batch is. Cancelled, it ends the run, with which another front door goes on.

        Raises OSError and FleetError.
        """
        batch = self._batch
        if batch.status == "validating":
            async with self._checking:
                caller = await self._accounts.caller(batch.owner)
                most_tokens = 0 if caller is None else caller.tokens_per_minute
                await _in_thread(lambda: self._check(most_tokens))
        if batch.status == "in_progress":
            await self._hold()
        holding = asyncio.create_task(self._keep_hold())
        try:
            if batch.status == "in_progress":
                ending = await self._sample()
                batch.ending, batch.status, batch.finalizing_at = ending, "finalizing", int(time.time())
                await _in_thread(lambda: self._batches.store(batch))
            if batch.status == "finalizing":
                await _in_thread(lambda: publish(batch, self._run, self._files))
        finally:
            await cancel_and_wait([holding])
        if batch.status == "finalizing":
            assert batch.ending is not None
            ending = batch.ending
            await self._charge()  # before it has ended, since nobody takes over a batch that has
            await _in_thread(lambda: self._end(ending))
        figures = f"{batch.completed} of {batch.total} completed, {batch.failed} failed"
        log.info("%s: %s, %s", batch.id, batch.status, figures)

    async def _hold(self) -> None:
        """Hold back the caller's budget for what it may use. If less is left, the batch has failed."""
        batch = self._batch
        while self._asked_to_end() is None:
            try:
                refused = await self._accounts.hold(batch.owner, batch.id, batch.hold, again=batch.held)
            except REDIS_ERRORS:
                await self._pause(_FIRST_PAUSE_S)
                continue
            if refused is not None:
                batch.errors = [Fault(code="insufficient_quota", message=refused)]
                await _in_thread(lambda: self._end("failed"))
            elif not batch.held:
                batch.held = True
                await _in_thread(lambda: self._batches.store(batch))
            return

    async def _keep_hold(self) -> None:
        """Never returns."""
        batch = self._batch
        while True:
            await asyncio.sleep(LEASE_S / 4)
            with contextlib.suppress(*REDIS_ERRORS):
                await self._accounts.hold(batch.owner, batch.id, batch.hold, again=True)

    async def _charge(self) -> None:
        """Charge the caller, as soon as Redis answers."""
        batch = self._batch
        while True:
            try:
                await self._accounts.charge(batch.owner, batch.id, batch.completed, batch.tokens)
            except REDIS_ERRORS:
                await asyncio.sleep(_FIRST_PAUSE_S)
            else:
                return

    def _check(self, most_tokens: int) -> None:
        batch, now = self._batch, int(time.time())
        profile, most_lines = self._settings.profile, self._settings.serve_batch_lines
        upload = self._folder / UPLOAD
        found = check(upload, self._run.input, batch.endpoint, profile, most_lines, most_tokens)
        if found.faults:
            batch.errors = found.faults
            self._end("failed")
            return
        batch.hold = found.hold
        batch.total, batch.status, batch.in_progress_at = found.total, "in_progress", now
        batch.model = found.models.pop() if len(found.models) == 1 else None
        self._batches.store(batch)

    async def _sample(self) -> Ending:
        pause = _FIRST_PAUSE_S
        while (ending := self._asked_to_end()) is None:
            if self._places.locked():
                await asyncio.sleep(_LOOK_S)
                continue
            async with self._places:
                code, reason = await self._try()
            if code in (ExitCode.OK, ExitCode.FAILURES):
                return "completed"
            if code == ExitCode.INTERRUPTED and await asyncio.to_thread(lambda: self._run.cancelled):
                await asyncio.to_thread(self._batches.cancel, self._batch.id)
            if self._asked_to_end() is not None:
                continue
            log.warning("%s: its run ended with status %d, and will be tried again", self._batch.id, code)
            self._refusals += code == ExitCode.USAGE
            if self._refusals == self.most_refusals:
                self._batch.errors = [Fault(code="run_failed", message=reason)]
                return "failed"
            await self._pause(pause)
            pause = min(2 * pause, _MOST_PAUSE_S)
        if self._run.outdated:
            async with self._places:
                await self._try(nothing_new=True)
        return ending

    async def _try(self, *, nothing_new: bool = False) -> tuple[int, str]:
        """The exit code of one run, and the last line that it wrote."""
        progress, asked = Progress(self._run), nothing_new
        pace = BatchPace(self._batch, self._run, self._accounts)
        paced = not nothing_new and await pace.begin()
        batch, locks = self._batch, self._descriptors
        run = RunProcess(self._run, self._settings, batch, **locks, paced=paced, nothing_new=nothing_new)
        pacing = [asyncio.create_task(pace.run())] if paced else []
        try:
            while run.returncode is None:
                await asyncio.sleep(_LOOK_S)
                for each in pacing:
                    if each.done():
                        each.result()
                await self._note(progress)
                if not asked and self._asked_to_end() is not None:
                    run.interrupt()
                    asked = True
            await self._note(progress)  # what it wrote last
            return run.returncode, run.reason
        finally:
            await cancel_and_wait(pacing)
            if run.returncode is None:
                await _to_the_end(asyncio.ensure_future(asyncio.to_thread(run.end)))

    async def _note(self, progress: Progress) -> None:
        batch = self._batch
        figures = await asyncio.to_thread(progress.read)
        if figures == (batch.completed, batch.failed):
            return
        batch.completed, batch.failed = figures
        await _in_thread(lambda: self._batches.store(batch))
        self._accounts.settle(batch.owner, {line_id(batch.id, line): used for line, used in progress.used.items()})
        progress.used.clear()

    def _asked_to_end(self) -> Ending | None:
        self._batch.cancelling_at = self._batches.cancelling_at(self._batch.id)
        if self._batch.cancelling_at is not None:
            return "cancelled"
        return "expired" if time.time() >= self._batch.expires_at else None

    async def _pause(self, seconds: float) -> None:
        for _ in range(math.ceil(seconds / _LOOK_S)):
            if self._asked_to_end() is None:
                await asyncio.sleep(_LOOK_S)

    def _end(self, ending: Ending) -> None:
        self._batch.end(ending, time.time())
        self._batches.store(self._batch)
        self._batches.tidy(self._batch.id)


async def _in_thread(work: Callable[[], None]) -> None:
    """Like asyncio.to_thread, but a cancelled task waits for the thread, which writes under the batch's lock."""
    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(working)
    except asyncio.CancelledError:
        await _to_the_end(working)
        raise


async def _to_the_end(working: asyncio.Future[None]) -> None:
    """Wait for work that ends within seconds, even if this task is cancelled several times meanwhile."""
    while not working.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(working)
