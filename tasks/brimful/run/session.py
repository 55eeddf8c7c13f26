"""The conductor of a run: requests from the input to the driver, what comes of them to the files, figures to see."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Protocol

from brimful.errors import BrimfulError, FleetError
from brimful.packing.units import Delivered, DriveStatus, Failed, Recovered, Unit
from brimful.run.display.display import Display
from brimful.run.display.progress import Progress
from brimful.run.display.summary import Summary, exit_code_of
from brimful.run.output.collect import Collector
from brimful.run.output.convert import convert
from brimful.run.output.paths import Order
from brimful.run.prepare import Prepared

_LARGE = 100 << 20  # bytes of a ledger that take a while
_TICK_S = 0.5
_STOP_S = 1.0
_REFUSED_S = 10.0


class DriverLike(Protocol):
    """:class:`brimful.dispatch.driver.Driver`, as far as a session uses it."""

    async def recover(self) -> Recovered: ...

    def deliveries(
        self, units: AsyncIterator[Unit], *, total: int | None
    ) -> AsyncIterator[list[Delivered | Failed]]: ...

    async def stop(self, *, drain: bool) -> None: ...

    def snapshot(self) -> DriveStatus: ...


class Session:
    """One try of a run. ``interrupt`` may be called any time from the loop: once to drain, twice to stop at once."""

    def __init__(
        self,
        prepared: Prepared,
        display: Display,
        *,
        check_fleet: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``check_fleet`` raises when a local fleet is past hope."""
        self._prepared = prepared
        self._display = display
        self._check_fleet = check_fleet
        self._clock = clock
        self._began = clock()
        self._ended = "done"
        self._driver: DriverLike | None = None
        self._collector = Collector(
            prepared.sink, prepared.tally, prepared.counts, prepared.errors, display.say, self._end
        )
        self._feed = prepared.feed(frozenset(), self._collector.take_bad)
        self._interrupts = 0
        self._work: asyncio.Task[None] | None = None
        self._stops: set[asyncio.Task[None]] = set()
        self._resumed = prepared.counts.rollouts
        self._error: BrimfulError | None = None
        self.summary: Summary | None = None
        """After :meth:`run`, whether it raised or not."""

    async def run(self, driver: DriverLike | None) -> Summary:
        """To the end of the input, or until interrupted, refused, or out of budget. ``driver`` None: nothing to ask.

        Raises what kept it from going on, after all that was delivered is on disk.
        """
        self._prepared.begin()
        self._driver = driver
        self._work = asyncio.create_task(self._drive(driver) if driver is not None else self._read_only())
        if self._interrupts:
            self._begin_stop()
        try:
            await self._watch(self._work)
        except asyncio.CancelledError:
            if not self._work.cancelled():  # it is the session itself that is cancelled
                self._work.cancel()
                raise
        except BrimfulError as error:
            self._ended, self._error = "error", error
        finally:
            for stop in self._stops:
                stop.cancel()
        if self._error is None:
            self._error = self._feed.fault or self._feed.nothing_usable()
            self._prepared.unused = self._feed.unused
        self.summary = summary = self._finish()
        if self._error is not None:
            raise self._error
        return summary

    @property
    def interrupts(self) -> int:
        return self._interrupts

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._interrupts += 1
        if self._ended == "done":
            self._ended = "interrupted"
        self._begin_stop()

    def _begin_stop(self) -> None:
        self._feed.stop()
        if self._driver is None or self._work is None:
            return
        if self._interrupts <= 1:
            self._display.say(
                f"stopping: nothing new is asked; of {self._driver.snapshot().queued:,} requests, those that have "
                "reached the provider are waited for. Ctrl-C again stops at once"
            )
            self._spawn(self._driver.stop(drain=True))
        else:
            self._display.say("stopping at once")
            self._spawn(self._abandon(self._driver, self._work))

    async def _abandon(self, driver: DriverLike, work: asyncio.Task[None]) -> None:
        try:
            async with asyncio.timeout(_STOP_S):
                await driver.stop(drain=False)
        except (TimeoutError, BrimfulError):
            pass
        work.cancel()

    def _end(self, ended: str, message: str) -> None:
        """The provider takes nothing more."""
        if self._ended in ("key_refused", "budget"):
            return
        self._ended = ended
        what = "the key was refused" if ended == "key_refused" else "the key's budget is at its end"
        self._display.say(f"{what}: {message}. Nothing more is asked")
        self._feed.stop()
        if self._driver is not None:
            self._spawn(self._let_end(self._driver, patient=ended == "budget"))

    async def _let_end(self, driver: DriverLike, *, patient: bool) -> None:
        """What is on the wire may end: it is paid for. With a refused key not for long, as it may be refused too."""
        await driver.stop(drain=True)
        if not patient:
            await asyncio.sleep(_REFUSED_S)
            await driver.stop(drain=False)

    def _spawn(self, stop: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(stop)
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)

    async def _watch(self, work: asyncio.Task[None]) -> None:
        """Shows the figures until the work ends; ends it when the fleet is past hope."""
        while not work.done():
            await asyncio.wait({work}, timeout=_TICK_S)
            await self._display.show(self._progress())
            try:
                self._check_fleet()
            except BrimfulError:
                work.cancel()
                await asyncio.wait({work})
                raise
        work.result()

    async def _drive(self, driver: DriverLike) -> None:
        prepared = self._prepared
        recovered = await driver.recover()
        self._collector.take(recovered.delivered, self._feed, earlier=True)
        self._resumed = prepared.counts.rollouts
        stopped = self._feed.stopped
        self._feed = prepared.feed(recovered.outstanding, self._collector.take_bad)
        if stopped:
            self._feed.stop()
        total = prepared.survey.good if prepared.survey else None
        deliveries = driver.deliveries(self._feed.units(), total=total)
        async for batch in deliveries:
            self._collector.take(batch, self._feed)
        if self._ended == "done" and self._feed.budget_reached:
            self._ended = "budget"

    async def _read_only(self) -> None:
        """Nothing is left to ask; bad lines may still have to be recorded."""
        async for _ in self._feed.units():
            break

    def _finish(self) -> Summary:
        """Files in their last state, and the figures that say the same."""
        prepared, paths = self._prepared, self._prepared.paths
        prepared.sink.close()
        if prepared.errors is not None:
            prepared.errors.finish(prepared.tally)
        if paths is not None:
            sorting = prepared.options.order is Order.INPUT
            if (sorting or paths.converted) and paths.ledger.exists() and paths.ledger.stat().st_size > _LARGE:
                self._display.say(f"writing {paths.output}")
            convert(paths, input_order=sorting)
        summary = self._summary()
        if paths is not None:
            figures = {name: value for name, value in summary.as_json().items() if name not in ("next", "output")}
            prepared.sidecar.tries[-1] |= {"ended": round(time.time(), 3), "summary": figures}
            try:
                prepared.sidecar.store(paths.sidecar)
            except FleetError:
                if self._error is None:  # else it is the same full disk
                    raise
        return summary

    @property
    def _requests(self) -> int:
        return self._prepared.survey.requests if self._prepared.survey else self._feed.requests

    @property
    def _left(self) -> int:
        return max(0, self._requests - self._prepared.tally.lines - self._collector.failed)

    @property
    def _retrying(self) -> bool:
        return self._prepared.options.retry_errors

    def _retries(self, drive: DriveStatus) -> dict[str, int]:
        took = self._collector.retries
        return {str(cause): max(took.get(cause, 0), drive.retries.get(cause, 0)) for cause in {**took, **drive.retries}}

    def _snapshot(self) -> DriveStatus:
        return self._driver.snapshot() if self._driver else DriveStatus()

    def _summary(self) -> Summary:
        prepared, counts, took = self._prepared, self._prepared.counts, self._collector
        paths, profile = prepared.paths, prepared.profile
        seconds = max(1e-9, self._clock() - self._began)
        seen = prepared.survey is not None or self._feed.at_end
        # Of requests that were split nothing is delivered: the driver alone knows of their attempts.
        drive = self._snapshot()
        starts = max(drive.attempts, took.attempts)
        if self._ended == "interrupted" and seen and not self._left and not (took.failed and self._retrying):
            self._ended = "done"
        return Summary(
            requests=self._requests,
            rollouts=counts.rollouts,
            succeeded=prepared.tally.lines,
            failed=took.failed,
            left=self._left if seen else None,
            resumed=self._resumed,
            truncated=counts.truncated,
            filtered=counts.filtered,
            empty=counts.empty,
            failed_by_cause=dict(prepared.errors.causes) if prepared.errors else {},
            failure_messages=prepared.errors.commonest() if prepared.errors else {},
            failed_passing=prepared.errors.passing if prepared.errors else 0,
            tokens=counts.tokens,
            prompt_tokens=counts.prompt_tokens,
            completion_tokens=counts.completion_tokens,
            starts=starts,
            attempts=starts,
            rate_limited=max(drive.rate_limited, took.rate_limited),
            retries=self._retries(drive),
            packed_requests=max(drive.packed, took.packed),
            parted=drive.split,
            seconds=round(seconds, 3),
            waiting_s=took.waiting_s.summary(),
            provider_s=took.provider_s.summary(),
            retrying_s=took.retrying_s.summary(),
            achieved={
                "starts": starts,
                "slots": round(took.provider_sum_s / seconds, 2),
                "rollouts_per_minute": round((counts.rollouts - self._resumed) / seconds * 60, 1),
            },
            allowed={
                "starts": profile.starts and profile.starts * (1 + int(seconds / profile.window_s)),
                "starts_per_window": profile.starts,
                "window_s": profile.window_s,
                "slots": profile.slots,
            },
            output=str(paths.output) if paths else "-",
            errors=str(paths.errors) if paths and paths.errors.exists() else None,
            exit_code=int(self._error.exit_code if self._error else exit_code_of(self._ended, took.failed)),
            ended=self._ended,
        )

    def _progress(self) -> Progress:
        prepared, counts = self._prepared, self._prepared.counts
        return Progress(
            seconds=self._clock() - self._began,
            requests=self._requests,
            total=prepared.survey.requests if prepared.survey else None,
            succeeded=prepared.tally.lines,
            failed=self._collector.failed,
            rollouts=counts.rollouts,
            new_rollouts=counts.rollouts - self._resumed,
            tokens=counts.tokens,
            budget=prepared.options.budget_tokens,
            retries=self._retries(self._snapshot()),
            drive=self._snapshot(),
            stopping=self._interrupts > 0,
        )
