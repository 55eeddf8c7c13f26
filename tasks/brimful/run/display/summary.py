"""A run's result: one object for ``--json``, and the end table. It equals a recount of the files."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from brimful.errors import ExitCode
from brimful.run.display.combinations import ROWS, described
from brimful.run.input.sweep.sweep import label
from brimful.words.counted import counted


@dataclass
class Summary:
    """Requests, rollouts and tokens are counted over all tries of the run, the rest over this try.

    ``--json`` calls the input's lines requests, as its fields are fixed; people read of prompts, API calls (requests to
    the provider) and rollouts. Durations are in seconds.
    """

    requests: int = 0
    """Lines that are not blank, up to ``--limit``."""
    rollouts: int = 0
    """Records in the output and in ``kept``."""
    succeeded: int = 0
    """Requests with all their rollouts in the output."""
    failed: int = 0
    """Requests with a record in the errors file."""
    left: int | None = 0
    """Requests neither succeeded nor failed; None if the input's end was not seen."""
    resumed: int = 0
    """Rollouts that were in the output, or finished but not collected, when this try began."""
    truncated: int = 0
    filtered: int = 0
    empty: int = 0
    failed_by_cause: dict[str, int] = field(default_factory=dict)
    failure_messages: dict[str, str] = field(default_factory=dict)
    """The most frequent message, by cause."""
    failed_passing: int = 0
    """Failed requests that may succeed when retried unchanged."""
    tokens: int = 0
    """Prompt and completion tokens of the records in the output."""
    unmetered_tokens: int = 0
    """Besides, the most that attempts without the provider's count may have used, over all tries: those that were cut
    off, timed out, were reset, or ended with their worker."""
    cost: float | None = None
    """Of these tokens by the prices of the profile or BRIMFUL_PRICES, in their currency; None without any."""
    unpriced: list[str] = field(default_factory=list)
    """Models without a price, which ``cost`` leaves out."""
    estimated: int = 0
    """Rollouts whose tokens brimful estimated, since the provider's usage is missing or cannot be right."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    starts: int = 0
    """Requests that reached the provider in this try."""
    attempts: int = 0
    """The same; a retried request counts several times."""
    rate_limited: int = 0
    """429s."""
    retries: dict[str, int] = field(default_factory=dict)
    """Failed attempts by cause."""
    packed_requests: int = 0
    """Requests that carried more than one line."""
    parted: int = 0
    """Those of them that failed and were split into smaller ones."""
    seconds: float = 0.0
    waiting_s: dict[str, float | None] = field(default_factory=dict)
    """p50 and p95 of the time that a request waited for a slot and a start; …"""
    provider_s: dict[str, float | None] = field(default_factory=dict)
    """… spent at the provider; …"""
    retrying_s: dict[str, float | None] = field(default_factory=dict)
    """… spent between attempts."""
    achieved: dict[str, float | None] = field(default_factory=dict)
    """starts, slots (mean in use), rollouts_per_minute."""
    allowed: dict[str, float | None] = field(default_factory=dict)
    """starts (the most in that time), starts_per_window, window_s, slots."""
    learnt: list[str] = field(default_factory=list)
    """What the provider allows, where that is less than is set."""
    checks: dict[str, Any] | None = None
    """With ``--schema`` or ``--hook``: accepted and rejected rollouts, what rejected them and their tokens, of all
    tries; rollouts asked for again in this one."""
    sweep: list[dict[str, Any]] = field(default_factory=list)
    """The figures of each combination of a sweep (:mod:`brimful.run.display.combinations`)."""
    output: str = ""
    errors: str | None = None
    """The errors file, if there is one."""
    kept: str | None = None
    """Where rollouts went after the output was removed or replaced; the next try adds them to the output."""
    exit_code: int = 0
    ended: str = "done"
    """done, interrupted, budget, key_refused, error."""
    cancelled_by: str | None = None
    """``user@host`` of whoever ended the run by ``brimful runs cancel``."""
    next: str | None = None
    """A command that resumes the run."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def rows(self) -> list[tuple[str, str]]:
        """The end table: label and value; leaves out what did not happen."""
        left = f", {self.left:,} left" if self.left else ""
        earlier = f" ({self.resumed:,} from before)" if self.resumed else ""
        rows = [
            ("prompts", f"{self.requests:,}: {self.succeeded:,} sampled, {self.failed:,} failed{left}"),
            ("rollouts", f"{self.rollouts:,}{earlier}"),
        ]
        if self.checks:
            rows.append(("checks", self._checks(self.checks)))
        if self.failed:
            rows += self._failures()
        odd = [(self.truncated, "truncated"), (self.filtered, "filtered"), (self.empty, "empty")]
        if any(count for count, _ in odd):
            rows.append(("of these", ", ".join(f"{count:,} {word}" for count, word in odd if count)))
        tokens = f"{self.tokens:,} ({self.prompt_tokens:,} prompt, {self.completion_tokens:,} sampled)"
        if self.unmetered_tokens:
            tokens += f", and up to {self.unmetered_tokens:,} in attempts that the provider reported no usage for"
        if self.checks and self.checks["rejected_tokens"]:
            tokens += f", and {self.checks['rejected_tokens']:,} in rejected rollouts"
        rows.append(("tokens", tokens))
        if self.cost is not None:
            without = f", without {', '.join(self.unpriced)}, which have no price" if self.unpriced else ""
            rows.append(("cost", f"{money(self.cost)}{without}"))
        if self.estimated:
            of = counted(self.estimated, "rollout")
            rows.append(("estimated", f"the tokens of {of}: the provider's usage is missing or cannot be right"))
        rows += self._sweep()
        rows.append(("API calls", self._calls()))
        if self.attempts:
            rows += [("p50 / p95", self._percentiles()), ("achieved", self._achieved())]
        rows += [("limits", line) for line in self.learnt]
        rows.append(("took", duration(self.seconds)))
        if self.output == "-" or Path(self.output).exists():
            rows.append(("output", self.output))
        rows += [
            (label, value)
            for label, value in (("kept", self.kept), ("errors", self.errors), ("next", self.next))
            if value
        ]
        if self.errors and self.failed > self.failed_passing:
            what = "" if self.rollouts else ", or the command's options"
            names = Path(self.errors).name
            rows.append(("to do", f"correct the lines ({names} names them){what}, then type the command again"))
        return rows

    def _checks(self, checks: dict[str, Any]) -> str:
        by = ", ".join(f"{name} {count:,}" for name, count in checks["rejected_by"].items())
        rejected = f"{checks['rejected']:,} rejected{f' ({by})' if by else ''}"
        return f"{checks['accepted']:,} accepted, {rejected}, {checks['asked_again']:,} asked for again"

    def _failures(self) -> list[tuple[str, str]]:
        """A row for each cause, with its most frequent message."""
        rows, label, total = [], "failed", f"{self.failed:,}:"
        for cause, count in sorted(self.failed_by_cause.items(), key=lambda pair: (-pair[1], pair[0])):
            message = self.failure_messages.get(cause)
            rows.append((label, f"{total} {cause} {count:,}{f' – {message}' if message else ''}"))
            label, total = "", " " * len(total)
        return rows or [("failed", f"{self.failed:,}")]

    def _sweep(self) -> list[tuple[str, str]]:
        """A row for each combination."""
        lines = [f"{label(row['sweep'])}: {described(row)}" for row in self.sweep[:ROWS]]
        if (more := len(self.sweep) - ROWS) > 0:
            lines.append(f"and {counted(more, 'more combination')}: see --json, or brimful report")
        return [("" if place else "sweep", line) for place, line in enumerate(lines)]

    def _calls(self) -> str:
        words = [f"{self.attempts:,}", f"rate-limited {self.rate_limited:,}"]
        if failed := {cause: count for cause, count in self.retries.items() if count}:
            causes = ", ".join(f"{cause} {count:,}" for cause, count in sorted(failed.items()))
            words.append(f"{sum(failed.values()):,} failed ({causes})")
        if self.packed_requests:
            words.append(f"{self.packed_requests:,} with several prompts")
        if self.parted:
            was = "was" if self.parted == 1 else "were"
            words.append(f"{self.parted:,} of those failed and {was} split into smaller ones")
        return ", ".join(words)

    def _percentiles(self) -> str:
        parts = (("waiting", self.waiting_s), ("provider", self.provider_s), ("retrying", self.retrying_s))
        return ", ".join(f"{word} {_s(of.get('p50'))} / {_s(of.get('p95'))}" for word, of in parts)

    def _achieved(self) -> str:
        achieved, allowed = self.achieved, self.allowed
        words = [f"{achieved.get('rollouts_per_minute') or 0:,.0f} rollouts/min"]
        if allowed.get("slots"):
            words.append(f"{achieved.get('slots') or 0:.1f} of {allowed['slots']:.0f} slots")
        if allowed.get("starts"):
            words.append(f"{achieved.get('starts') or 0:,.0f} of {allowed['starts']:,.0f} starts possible in that time")
        return ", ".join(words)


def exit_code_of(ended: str, failed: int) -> ExitCode:
    """The exit code for :attr:`Summary.ended` and a number of failed requests."""
    codes = {
        "interrupted": ExitCode.INTERRUPTED,
        "budget": ExitCode.BUDGET,
        "key_refused": ExitCode.KEY_REFUSED,
        "error": ExitCode.INTERNAL,
    }
    return codes.get(ended, ExitCode.FAILURES if failed else ExitCode.OK)


def money(amount: float) -> str:
    """Two decimals; four below one."""
    return f"{amount:,.2f}" if amount >= 1 else f"{amount:.4f}"


def duration(seconds: float) -> str:
    """``0.8 s``, ``42 s``, ``3 min 5 s``, ``2 h 7 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def _s(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.2f} s"
