"""What callers have used: counted in this process, and added to the fleet's counts in Redis twice a second.

A request thereby costs no command. A front door that is killed loses the counts of the last half second.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from redis import RedisError, ResponseError

from brimful.outcome import Outcome
from brimful.state.callers.tokens import KINDS, REQUESTS, TOKENS, WAITED_MS, CallerRecord, stored_count, usage_field
from brimful.state.keys import caller_batches_key, callers_usage_key
from brimful.state.redis_retry import refused_for_now
from brimful_worker.metrics import catalogue as metrics
from brimful_worker.metrics.kinds import OTHERS, BoundedLabel
from brimful_worker.serve.refusals import NO_RETRY, Refusal
from brimful_worker.singles.pipeline import SharedPipeline

log = logging.getLogger(__name__)

_MOST_LABELS = 100
"""Callers with series of their own in the metrics; the others share one."""


@dataclass(slots=True)
class Account:
    """What one request is charged."""

    outcome: Outcome | None = None
    """Stays None if its caller goes away, or it is refused."""
    sent: bool = False
    tokens: int = 0
    cost: float = 0.0
    """For the metrics."""


class Usage:
    """One front door's counts."""

    def __init__(self, fleet: str) -> None:
        self._key = callers_usage_key(fleet)
        self._batches_key = caller_batches_key(fleet)
        self._unwritten: Counter[tuple[str, str]] = Counter()
        """By caller and kind: what Redis does not have yet."""
        self._writing: Counter[tuple[str, str]] = Counter()
        """On its way there."""
        self._held: defaultdict[str, int] = defaultdict(int)
        """Tokens that requests under way in this process may use, by caller."""
        self._written: dict[str, int] = {}
        """Tokens in Redis, of all front doors, by caller with a budget."""
        self._batches: Counter[str] = Counter()
        """Tokens that batches hold back, of all front doors, by caller."""
        self._refused: set[tuple[str, str]] = set()
        """Counts that Redis refuses to change, and that were logged."""
        self._label = BoundedLabel(_MOST_LABELS)

    @contextmanager
    def request(self, caller: CallerRecord | None, hold: int, account: Account) -> Iterator[None]:
        """Counts one request, which may use ``hold`` tokens. Raises Refusal (429) if its budget has fewer."""
        if caller is None:
            yield
            return
        self.check(caller, hold)
        self._held[caller.name] += hold
        try:
            yield
        finally:
            self._held[caller.name] -= hold
            if not self._held[caller.name]:
                del self._held[caller.name]
            outcome = account.outcome
            account.tokens = _tokens(outcome) if outcome is not None else hold if account.sent else 0
            waited_ms = round(outcome.waited_s * 1000) if outcome is not None else 0
            for kind, amount in ((REQUESTS, 1), (TOKENS, account.tokens), (WAITED_MS, waited_ms)):
                self._unwritten[caller.name, kind] += amount
            self._measure(caller.name, account.tokens, waited_ms, cost=account.cost)

    async def exchange(self, pipeline: SharedPipeline, budgeted: list[str], now_s: float) -> None:
        """Add what is new to Redis, and read the tokens of the callers that have a budget.

        A count that Redis refuses to change, such as one that is no number, is logged and kept in this process: it
        still counts for the caller's budget. The others go on.

        ``now_s``: on the clock of the callers' limits. Raises redis.RedisError.
        """
        news, self._unwritten = self._unwritten, Counter()
        self._writing.update(news)
        adding = [
            (entry, pipeline.ask("HINCRBY", self._key, usage_field(*entry), amount))
            for entry, amount in news.items()
            if amount
        ]
        # The holds first: of a batch that ends in between, the tokens are then seen twice, and not overlooked.
        holding = pipeline.ask("HGETALL", self._batches_key) if budgeted else None
        reading = (
            pipeline.ask("HMGET", self._key, *(usage_field(name, TOKENS) for name in budgeted)) if budgeted else None
        )
        fault: RedisError | None = None
        try:
            for entry, added in adding:
                try:
                    await added
                except RedisError as error:
                    if isinstance(error, ResponseError) and not refused_for_now(error):
                        self._note_refused(entry, error)
                    else:
                        fault = fault or error
                else:
                    del news[entry]
                    self._refused.discard(entry)
        finally:
            self._unwritten.update(news)  # what may not have arrived is written again: rather counted twice than never
            self._writing.subtract(news)
        if reading is not None:
            await reading
            self._written = {name: stored_count(value) for name, value in zip(budgeted, reading.result(), strict=True)}
        if holding is not None:
            self._batches = _held_by_batches(await holding, now_s)
        self._writing = Counter()
        if fault is not None:
            raise fault

    async def of(self, pipeline: SharedPipeline, caller: str) -> dict[str, int]:
        """Kind → amount, of all front doors. Raises redis.RedisError."""
        values = await pipeline.ask("HMGET", self._key, *(usage_field(caller, kind) for kind in KINDS))
        return {
            kind: stored_count(value) + self._unwritten[caller, kind] for kind, value in zip(KINDS, values, strict=True)
        }

    def charged(self, caller: str, requests: int, tokens: int) -> None:
        """A batch has used so many, which are in Redis already. For the metrics."""
        self._measure(caller, tokens, 0, requests=requests)

    def check(self, caller: CallerRecord, hold: int) -> None:
        """Raises Refusal (429) if the caller's budget has fewer than ``hold`` tokens."""
        budget = caller.budget_tokens
        if not budget:
            return
        spent, held = self._spent(caller.name), self._held_back(caller.name)
        if spent + held + hold <= budget:
            return
        message = (
            f"the token budget of caller {caller.name} is too small for this request: of {budget:,} tokens {spent:,} "
            f"are spent and {held:,} held by requests and batches under way; this request may use up to {hold:,}. "
            "The server's operator can raise the budget"
        )
        waits = spent + hold <= budget  # those under way may use less than they hold
        raise Refusal(429, message, "insufficient_quota", headers={"Retry-After": "1"} if waits else NO_RETRY)

    def show_budgets(self, callers: Iterable[CallerRecord]) -> None:
        """Set the gauges of all callers that have a budget, and remove those of any other."""
        budgets: dict[str, int] = {}
        lefts: dict[str, int] = {}
        for caller in callers if metrics.serving() else ():
            if caller.budget_tokens and (label := self._label(caller.name)) != OTHERS:
                left = caller.budget_tokens - self._spent(caller.name) - self._held_back(caller.name)
                budgets[label], lefts[label] = caller.budget_tokens, max(0, left)
        metrics.CALLER_BUDGET.set_all(budgets)
        metrics.CALLER_BUDGET_LEFT.set_all(lefts)

    def _note_refused(self, entry: tuple[str, str], error: RedisError) -> None:
        if entry in self._refused:
            return
        self._refused.add(entry)
        log.error(
            "Redis refuses to count the %s of caller %s: %s. They are counted in this process only, until the field "
            "%r of %s is removed",
            entry[1],
            entry[0],
            error,
            usage_field(*entry),
            self._key,
        )

    def _spent(self, caller: str) -> int:
        entry = (caller, TOKENS)
        return self._written.get(caller, 0) + self._writing[entry] + self._unwritten[entry]

    def _held_back(self, caller: str) -> int:
        return self._held.get(caller, 0) + self._batches[caller]

    def begin(self, callers: Iterable[str]) -> None:
        """Expose these callers' series, at 0: Prometheus sees no increase in one that first appears above."""
        for caller in callers:
            self._measure(caller, 0, 0, requests=0)

    def _measure(self, caller: str, tokens: int, waited_ms: int, *, requests: int = 1, cost: float = 0.0) -> None:
        if not metrics.serving():
            return
        label = self._label(caller)
        metrics.CALLER_REQUESTS.inc(label, by=requests)
        metrics.CALLER_COST.inc(label, by=cost)
        metrics.CALLER_TOKENS.inc(label, by=tokens)
        metrics.CALLER_WAITED_SECONDS.inc(label, by=waited_ms / 1000)


def _held_by_batches(stored: list[bytes], now_s: float) -> Counter[str]:
    """By caller; ``stored`` as :func:`caller_batches_key` describes it."""
    found: Counter[str] = Counter()
    for name, value in zip(stored[::2], stored[1::2], strict=True):
        tokens, _, until = value.partition(b" ")
        with suppress(ValueError):  # the next batch_hold.lua deletes what is no hold
            if int(until or 0) >= int(now_s):
                found[name.decode().partition(" ")[0]] += int(tokens)
    return found


def _tokens(outcome: Outcome) -> int:
    """The answer's usage, and what attempts without one may have used."""
    usage = (outcome.completion or {}).get("usage")
    counts = [usage.get(f"{kind}_tokens") for kind in ("prompt", "completion")] if isinstance(usage, dict) else []
    return sum(count for count in counts if isinstance(count, int) and count > 0) + outcome.unmetered_tokens
