"""Judges what the driver delivers: accepted rollouts go to the output, the others are sampled again or given up.

An outcome stays in Redis until its rollouts are judged and the verdicts are on disk (:meth:`Judge.settled`). A
submitter that dies in between judges it again when it is resumed; nothing is recorded twice, since the output knows its
rollouts and :mod:`rejections` the requests of the rejected ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from brimful.errors import FleetError
from brimful.outcome import Rollout
from brimful.packing.units import Delivered, Failed, Recovered, Unit
from brimful.run.checks.bounded import Abandoned
from brimful.run.checks.checker import Checker
from brimful.run.checks.open_lines import Pair
from brimful.run.checks.options import CheckOptions
from brimful.run.checks.rejections import Place, Rejections
from brimful.run.checks.resampling import Resampling
from brimful.run.checks.streak import MOST, Streak
from brimful.run.checks.verdict import Broken, Rejected, Verdict
from brimful.run.checks.writer import VerdictWriter
from brimful.run.input.feed import Feed
from brimful.run.output.collect import Collector

_AT_ONCE = 2048
"""Rollouts that are being checked; what is delivered beyond waits in Redis, and the sampling with it."""
_MOST_STUCK = 64
_STOPPED_S = 5.0
"""How long checks go on after a stop. What is not checked by then stays in Redis for the next try."""


class Judge:
    """Decides about all rollouts of a run.

    Call :meth:`recover` first, give :meth:`units` to the driver and each delivery to :meth:`take`, and await
    :meth:`settled` before acknowledging.
    """

    def __init__(
        self,
        options: CheckOptions,
        collector: Collector,
        feed: Feed,
        rejections: Rejections,
        *,
        keep_going: bool,
        stop: Callable[[str], None],
    ) -> None:
        """``keep_going``: however often the hook fails. ``stop``: called once it has failed too often, and why."""
        self._options = options
        self._collector = collector
        self._feed = feed
        self._rejections = rejections
        self._stop = stop
        self._checker = Checker(options, feed.options.sweep)
        self._streak = Streak(None if keep_going else MOST)
        self._resampling = resampling = Resampling(feed, rejections, options.tries)
        self._lines = resampling.lines
        self._writer = VerdictWriter(collector, feed, rejections, resampling, options.tries)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stale: set[tuple[Place, str]] = set()
        """Rejected rollouts that Redis still had, of which the next sample is there or under way as well."""
        self._checking = self._held = 0
        self._room = asyncio.Event()
        self._abandoned = False
        self._timer: asyncio.TimerHandle | None = None
        self.error: FleetError | None = None
        """Why the run stops, once the hook has failed too often."""
        self.recovered = 0
        """Rollouts accepted that an earlier try had sampled."""
        resampling.on_wait = self._release_if_idle
        resampling.on_exhausted = self._writer.give_up
        resampling.on_end = self._writer.end
        feed.on_stop = self._stopping

    def units(self, source: AsyncIterator[Unit]) -> AsyncIterator[Unit]:
        """What is to be sampled. Ends when all is judged."""
        return self._resampling.units(source)

    async def recover(self, recovered: Recovered) -> None:
        """Check what an earlier try has sampled. The feed has looked its lines up."""
        pairs: dict[int, set[Pair]] = {}
        for line, prompt, choice in recovered.outstanding:
            pairs.setdefault(line, set()).add((prompt, choice))
        for item, pair in self._news(recovered):
            pairs.setdefault(item.line, set()).add(pair)
        for line, some in pairs.items():
            missing = [pair for pair in some if not self._collector.done.has(line, *pair)]
            self._lines.expect(line, missing, self._feed.lines.get(line))
        self._feed.expect((line, *pair) for line, some in pairs.items() for pair in some)
        await self.take(recovered.delivered, earlier=True)

    def _news(self, recovered: Recovered) -> Iterator[tuple[Delivered, Pair]]:
        """The rollouts that are to be judged: not those whose verdict is recorded and was acted on."""
        found: list[tuple[Delivered, Place]] = []
        for item in recovered.delivered:
            found += [(item, (item.line, each.prompt_index, each.choice_index)) for each in item.rollouts]
        known = self._rejections.known
        newer = {place for item, place in found if known(place, item.outcome.id) is None} | recovered.outstanding
        for item, place in found:
            line, *pair = place
            if (rejection := known(place, item.outcome.id)) is not None and (
                place in newer or self._feed.failed_before(line) or rejection != self._rejections.last(place)
            ):
                self._stale.add((place, item.outcome.id))
            else:
                yield item, (pair[0], pair[1])

    async def take(self, batch: Sequence[Delivered | Failed], *, earlier: bool = False) -> None:
        """Begin to judge a delivery. Waits while too much is being checked. Raises what writing has raised.

        ``earlier``: an earlier try has sampled it.
        """
        requests: dict[str, list[Delivered | Failed]] = {}
        for item in batch:
            requests.setdefault(item.outcome.id, []).append(item)
        for items in requests.values():
            count = sum(len(item.rollouts) for item in items if isinstance(item, Delivered))
            while not earlier and self._checking and self._checking + count > _AT_ONCE and not self._feed.stopped:
                self._room.clear()
                await self._room.wait()
            if self._resampling.fault is not None:
                raise self._resampling.fault
            self._checking += count
            task = asyncio.create_task(self._judge(items, count, earlier))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def settled(self) -> bool:
        """Wait until all that was taken so far is judged and written. Raises what writing a verdict has raised.

        Returns False if some of it is not: judging has not begun, or ended early, and leaves it to the next try."""
        if self._resampling.began and self._tasks:
            await asyncio.wait(set(self._tasks))
        if self._resampling.fault is not None:
            raise self._resampling.fault
        return not self._abandoned and (self._resampling.began or not self._tasks)

    def figures(self) -> dict[str, Any]:
        """For the summary. Over all tries of the run, ``asked_again`` of this one."""
        rejected = self._rejections
        return {
            "accepted": self._collector.counts.rollouts,
            "rejected": rejected.counts.rollouts,
            "rejected_by": dict(sorted(rejected.by.items())),
            "rejected_tokens": rejected.counts.tokens,
            "asked_again": self._resampling.asked_again,
        }

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        self._checker.close()

    def _stopping(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_STOPPED_S, self._checker.abandon)
        self._streak.release()
        self._room.set()
        self._resampling.changed()

    async def _judge(self, items: list[Delivered | Failed], count: int, earlier: bool) -> None:
        try:
            verdicts = await self._verdicts(items)
            broken = {place for place, verdict in verdicts.items() if isinstance(verdict, Broken)}
            if broken and not self._feed.stopped:
                self._held += count
                over = self._streak.hold()
                self._release_if_idle()
                try:
                    await over
                finally:
                    self._held -= count
            if broken and self.error is not None:
                self._abandoned = True
                verdicts = {place: verdict for place, verdict in verdicts.items() if place not in broken}
            self._write(items, verdicts, earlier)
        except Exception as error:  # of the disk; the run ends with it
            self._resampling.fault = self._resampling.fault or error
        finally:
            self._checking -= count
            self._room.set()
            self._resampling.changed()
            self._feed.freed()
            self._release_if_idle()

    async def _verdicts(self, items: list[Delivered | Failed]) -> dict[Place, Verdict]:
        """By place, of the rollouts that the output does not hold; of those that could be checked."""
        found: list[tuple[Place, Unit, Delivered, Rollout]] = []
        for item in items:
            for rollout in item.rollouts if isinstance(item, Delivered) else ():
                place = (item.line, rollout.prompt_index, rollout.choice_index)
                stale = (place, item.outcome.id) in self._stale
                if not stale and not self._collector.done.has(*place):
                    assert isinstance(item, Delivered)
                    if (unit := self._lines.unit(item.line)) is not None:
                        found.append((place, unit, item, rollout))
                    else:
                        self._abandoned = True  # the input does not hold its line any more
        verdicts = await asyncio.gather(*(self._verdict(*each) for each in found))
        self._abandoned |= None in verdicts
        return {each[0]: verdict for each, verdict in zip(found, verdicts, strict=True) if verdict is not None}

    async def _verdict(self, place: Place, unit: Unit, item: Delivered, rollout: Rollout) -> Verdict | None:
        if (known := self._rejections.known(place, item.outcome.id)) is not None:
            return known.verdict
        if self.error is not None:
            return None
        try:
            tries = self._rejections.rejected(place) + 1
            verdict = await self._checker.check(unit, rollout, tries=tries, model=item.model)
        except Abandoned:
            return None
        if not (isinstance(verdict, Rejected) and verdict.by == "schema" and self._options.hook is not None):
            self._streak.add(verdict)  # else the hook was not called
        if self.error is None and ((fault := self._streak.too_long) is not None or self._checker.stuck >= _MOST_STUCK):
            self._give_up(fault)
        return verdict

    def _write(self, items: list[Delivered | Failed], verdicts: dict[Place, Verdict], earlier: bool) -> None:
        before = self._collector.counts.rollouts
        given_up = self._writer.write(items, verdicts, earlier=earlier)
        self.recovered += (self._collector.counts.rollouts - before) if earlier else 0
        again: dict[tuple[int, int], list[Pair]] = {}
        for place, verdict in verdicts.items():
            line, *_ = place
            pair = (place[1], place[2])
            repeat = isinstance(verdict, Rejected) and place not in given_up
            if repeat:
                again.setdefault((line, self._rejections.rejected(place)), []).append(pair)
            self._lines.end(line, pair, again=repeat)
        for item in items:
            if isinstance(item, Failed):
                for pair in item.wanted:
                    self._lines.end(item.line, pair)
        for (line, _), pairs in again.items():
            self._resampling.repeat(line, pairs)
        for line in {item.line for item in items}:
            if (unit := self._lines.unit(line)) is not None:
                self._feed.budget.keep(line, unit.request, self._lines.held(line))
            self._resampling.end_line(line)

    def _release_if_idle(self) -> None:
        """Where all that is in flight waits for the streak's end, no other call can end it."""
        if self._held and self._held >= self._lines.in_flight:
            self._streak.release()

    def _give_up(self, fault: Broken | None) -> None:
        what = "the check" if self._options.hook is None else f"--hook {self._options.hook.name}"
        if fault is not None:
            said = f"{what} failed on {MOST} rollouts one after the other: {fault.reason}"
        else:
            said = f"{_MOST_STUCK} calls of {what} took longer than --hook-timeout and still have not ended"
        self.error = FleetError(
            f"{said}. Nothing more was sent, and these rollouts are not recorded: correct it and type the command "
            "again, which checks what was sampled as far as Redis still has it; or add --keep-going"
        )
        self._streak.release()
        self._stop(said)
