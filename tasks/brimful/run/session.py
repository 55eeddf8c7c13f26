"""One execution of a run: passes requests from the input to the driver and outcomes to the files, and stops early."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from brimful.errors import BrimfulError, FleetError
from brimful.packing.units import DriveStatus
from brimful.run.checks.judge import Judge
from brimful.run.display.display import Display
from brimful.run.display.progress import Progress
from brimful.run.display.summary import Summary
from brimful.run.output.collect import Collector
from brimful.run.prepare import Prepared
from brimful.run.totals import Totals
from brimful.runtime.aio import until_tick

if TYPE_CHECKING:  # it imports Celery, which takes half a second
    from brimful.dispatch.driver import Driver

_STOP_S = 1.0
_KEY_REFUSED_S = 10.0


class Session:
    """:meth:`run` once. :meth:`interrupt` at any time, on the loop: once to drain, twice to stop at once."""

    def __init__(
        self,
        prepared: Prepared,
        display: Display,
        *,
        check_fleet: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``check_fleet`` raises BrimfulError if a local fleet cannot go on."""
        self._prepared = prepared
        self._display = display
        self._check_fleet = check_fleet
        self._collector = Collector(
            prepared.sink,
            prepared.done,
            prepared.counts,
            prepared.errors,
            display.say,
            self._provider_stopped,
            prepared.options.keep,
            prepared.rejections.counts,
        )
        self._feed = prepared.feed(self._collector.take_bad, display.say)
        self._judge = self._make_judge()
        self._totals = Totals(prepared, self._collector, self._feed, clock)
        self.driver: Driver | None = None
        """While :meth:`run` lasts, and after it. None before it, and where nothing is left to ask."""
        self._work: asyncio.Task[None] | None = None
        self._stops: set[asyncio.Task[None]] = set()
        self._ended = "done"
        self._unmetered_before = prepared.files.unmetered if prepared.files is not None else 0
        self._lost: str | None = None
        """What became of an output that was removed or replaced under the run."""
        self.interrupts = 0
        self.progress: Progress | None = None
        """The newest figures."""
        self.held_by = self.cancelled_by = ""
        """``user@host`` of whoever holds or has cancelled the run from elsewhere."""
        self.summary: Summary | None = None
        """Set when :meth:`run` ends, whether it raises or not."""

    def _make_judge(self) -> Judge | None:
        prepared = self._prepared
        if (checks := prepared.options.checks) is None:
            return None
        judge = Judge(
            checks,
            self._collector,
            self._feed,
            prepared.rejections,
            keep_going=prepared.options.keep_going,
            stop=self._checks_stopped,
        )
        prepared.settled = judge.settled
        return judge

    async def run(self, driver: Driver | None) -> Summary:
        """Sample to the end of the input, or until interrupted, refused, or out of budget.

        ``driver`` None: nothing is left to ask. Raises the error that ended the run early, after all that was delivered
        is on disk.
        """
        files = self._prepared.files
        if files is not None and (note := files.begin(self._prepared.survey, self._prepared.profile)):
            self._display.say(note)
        self.driver = driver
        self._work = asyncio.create_task(self._drive(driver) if driver is not None else self._read_only())
        if self.interrupts:
            self._begin_stop()
        error: BrimfulError | None = None
        try:
            await self._watch(self._work)
        except asyncio.CancelledError:
            if not self._work.cancelled():  # the session itself was cancelled
                self._work.cancel()
                raise
        except BrimfulError as caught:
            self._ended, error = "error", caught
        finally:
            for stop in self._stops:
                stop.cancel()
            if self._judge is not None:
                self._judge.close()
        if error is None:
            error = self._feed.fault or self._feed.nothing_usable()
            self._prepared.unused = self._feed.unused
        error = self._lost_error() or error or self._refused_error()
        self._collector.record_undecided()
        self._finish(error)
        if error is not None:
            raise error
        assert self.summary is not None
        return self.summary

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.interrupts += 1
        if self._ended == "done":
            self._ended = "interrupted"
        self._begin_stop()

    def _begin_stop(self) -> None:
        self._feed.stop()
        if self.driver is None or self._work is None:
            return
        if self.interrupts <= 1:
            self._display.say(
                f"stopping: no new API calls are made; of the {self.driver.snapshot().queued:,} under way, those that "
                "have reached the provider are waited for. Ctrl-C again stops at once"
            )
            self._spawn(self.driver.stop(drain=True))
        else:
            self._display.say("stopping at once")
            self._spawn(self._abandon(self.driver, self._work))

    async def _abandon(self, driver: Driver, work: asyncio.Task[None]) -> None:
        try:
            async with asyncio.timeout(_STOP_S):
                await driver.stop(drain=False)
        except (TimeoutError, BrimfulError):
            pass
        work.cancel()

    def _provider_stopped(self, ended: str, message: str) -> None:
        """The provider takes no more requests: ``ended`` is ``key_refused`` or ``budget``."""
        if self._ended in ("key_refused", "budget"):
            return
        self._ended = ended
        what = "the key was refused" if ended == "key_refused" else "the key's budget is used up"
        self._display.say(f"{what}: {message}. No new API calls are made")
        self._feed.stop()
        if self.driver is not None:
            self._spawn(self._drain(self.driver, at_most_s=None if ended == "budget" else _KEY_REFUSED_S))

    def _checks_stopped(self, why: str) -> None:
        """The hook fails on everything."""
        self._display.say(f"{why}. No new requests are sent")
        self._feed.stop()
        if self.driver is not None:
            self._spawn(self.driver.stop(drain=True))

    def _check_output(self) -> None:
        """Stop asking if the output is gone. Raises FleetError if what still comes cannot be kept."""
        files = self._prepared.files
        if files is None or self._lost is not None or (lost := files.lost()) is None:
            return
        self._lost, self._ended = lost, "error"
        self._display.say(
            f"{lost} while the run was writing it. No new API calls are made; what still comes is kept in {files.kept}"
        )
        self._feed.stop()
        if self.driver is not None:
            self._spawn(self.driver.stop(drain=True))

    def _lost_error(self) -> FleetError | None:
        """Also after the last record: an output that is gone at the end is no success."""
        try:
            self._check_output()
        except FleetError as error:
            return error
        if self._lost is None or self._prepared.files is None:
            return None
        return FleetError(
            f"{self._lost} while the run was writing it; what came is kept in {self._prepared.files.kept}, and the "
            "same command resumes the run with it"
        )

    def _refused_error(self) -> FleetError | None:
        failure = self.driver.refused if self.driver is not None and self._ended == "done" else None
        if failure is None or self._snapshot().stopping is None:
            return None
        if self._feed.at_end and self._totals.left <= self._collector.undecided:
            return None  # no line is left to be asked for
        self._ended = "error"
        if self._collector.decided:  # requests that were on the wire when the run stopped
            return FleetError(
                f"the provider refused the first requests in the same words: {failure.message}. Nothing more was sent, "
                "though some that were on their way were sampled then, so the refused lines are recorded as failed: "
                "type the command again to sample the rest"
            )
        self._collector.drop_undecided()
        return FleetError(
            f"the provider refused every request in the same words: {failure.message}. Nothing more was sent, and no "
            "line was recorded as failed: correct what the message names, then type the command again; or add "
            "--keep-going"
        )

    async def _drain(self, driver: Driver, *, at_most_s: float | None) -> None:
        """Let running requests end, since they are paid for. With a refused key they may be refused as well."""
        await driver.stop(drain=True)
        if at_most_s is not None:
            await asyncio.sleep(at_most_s)
            await driver.stop(drain=False)

    def _spawn(self, stop: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(stop)
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)

    async def _watch(self, work: asyncio.Task[None]) -> None:
        """Show the figures until the work ends; cancel it if the fleet cannot go on."""
        while not work.done():
            await asyncio.wait({work}, timeout=until_tick(self._display.every_s))
            self._count_unmetered()
            stopping, held_by = self.interrupts > 0, self.held_by
            self.progress = self._totals.progress(self._snapshot(), stopping=stopping, held_by=held_by)
            await self._display.show(self.progress)
            try:
                self._check_output()
                self._check_fleet()
            except BrimfulError:
                work.cancel()
                await asyncio.wait({work})
                raise
        work.result()

    async def _drive(self, driver: Driver) -> None:
        recovered = await driver.recover()
        lines = {item.line for item in recovered.delivered} | {line for line, _, _ in recovered.outstanding}
        if lines and not await self._feed.look_up(lines):
            return  # interrupted while a stream was read: Redis keeps what was recovered
        if self._judge is None:
            self._collector.take(recovered.delivered, self._feed, earlier=True)
            self._feed.expect(recovered.outstanding)
        else:
            await self._judge.recover(recovered)
        self._totals.resumed = self._prepared.counts.rollouts
        self._unmetered_before += recovered.unmetered_tokens
        survey, units = self._prepared.survey, self._feed.units()
        units = units if self._judge is None else self._judge.units(units)
        async for batch in driver.deliveries(units, total=survey.good if survey else None):
            self._count_unmetered()
            if self._judge is None:
                self._collector.take(batch, self._feed)
            else:
                await self._judge.take(batch)
            self._check_output()
        if self._judge is not None:
            await self._judge.settled()
            self._totals.resumed += self._judge.recovered
            if self._judge.error is not None:
                raise self._judge.error
        if self._ended == "done" and self._feed.budget.reached:
            self._ended = "budget"

    async def _read_only(self) -> None:
        """Record the input's bad lines; no request is left to ask."""
        async for _ in self._feed.units():
            break

    def _count_unmetered(self) -> None:
        """Attempts whose tokens nobody counted cost all that they asked for."""
        self._feed.budget.unmetered = self._unmetered_before + self._snapshot().unmetered_tokens
        if self._prepared.files is not None:
            self._prepared.files.note_unmetered(self._feed.budget.unmetered)

    def _snapshot(self) -> DriveStatus:
        return self.driver.snapshot() if self.driver else DriveStatus()

    def _finish(self, error: BrimfulError | None) -> None:
        """Bring the files into their final form, then count."""
        files = self._prepared.files
        self._count_unmetered()
        if files is not None:
            files.convert(self._prepared.options.order, self._display.say)
        self.summary = self._totals.summary(self._snapshot(), self._ended, error)
        self.summary.cancelled_by = (self.summary.ended == "interrupted" and self.cancelled_by) or None
        self.summary.checks = self._judge.figures() if self._judge is not None else None
        if files is not None:
            files.end(self.summary, failed=error is not None)
