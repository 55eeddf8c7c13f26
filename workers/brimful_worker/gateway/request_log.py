"""What the gateway saw: the witness that tests and rehearsals interrogate.

An *arrival* is a request to completions, chat completions or Job submission that reached the gateway, whatever became
of it; ``most_arrivals`` counts all of them, refused ones too. A *start* is an arrival that took a place in the
gateway's own window. All times are seconds of one monotonic clock, taken when the request's headers are there.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from brimful_worker.gateway.ask import Ask
from brimful_worker.gateway.limits import Window
from brimful_worker.gateway.text import prompt_digest


@dataclass(slots=True)
class Arrival:
    """One request. ``status`` is 0 while it is here and -1 if its client went away or its connection was cut."""

    at: float
    kind: str
    workload: str
    ended: float = 0.0
    status: int = 0
    code: str = ""
    fault: str = ""
    prompts: int = 0
    n: int = 0
    max_tokens: int = 0


class RequestLog:
    """Counts of one gateway since its start or the last reset. ``snapshot`` is what ``GET /ledger`` answers."""

    def __init__(self, clock: Callable[[], float], *, window_s: float, keep: int, track_prompts: bool) -> None:
        self._clock = clock
        self._keep = keep
        self._track = track_prompts
        self.window = Window(window_s)
        self.connections_open = 0
        self._clear()

    def _clear(self) -> None:
        self.arrivals: deque[Arrival] = deque(maxlen=self._keep)
        self.kinds: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()
        self.codes: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.workloads: Counter[str] = Counter()
        self.first_at: float | None = None
        self.last_at: float | None = None
        self.gone = 0
        self.spoiled = 0
        self.sampled_total = self.sampled_distinct = 0
        self.attempts_max = 0
        self.prompt_tokens = self.generated_tokens = 0
        self.connections = 0
        self.connections_peak = self.connections_open
        # digest -> [attempts, times choice 0 was sampled, choice 1, ...]
        self._prompts: dict[bytes, list[int]] = {}

    def reset(self) -> None:
        """Forgets all but what is here now; the window's peak begins from the window as it is."""
        self._clear()
        self.window.reset_peak(self._clock())

    # -- what the gateway tells ---------------------------------------------------------------------------------

    def arrive(self, kind: str, workload: str) -> Arrival:
        now = self._clock()
        self.window.admit(now, None)
        self.first_at = now if self.first_at is None else self.first_at
        self.last_at = now
        self.kinds[kind] += 1
        self.workloads[workload] += 1
        arrival = Arrival(now, kind, workload)
        self.arrivals.append(arrival)
        return arrival

    def asked(self, arrival: Arrival, ask: Ask) -> None:
        """The arrival asks for this: an attempt at each of its prompts."""
        arrival.prompts, arrival.n, arrival.max_tokens = len(ask.prompts), ask.n, ask.max_tokens
        if self._track:
            for digest in ask.digests:
                counts = self._prompts.setdefault(digest, [0])
                counts[0] += 1
                self.attempts_max = max(self.attempts_max, counts[0])

    def sampled(self, ask: Ask, generated: int) -> None:
        """All choices of it were generated and are being delivered whole."""
        self.prompt_tokens += ask.prompt_tokens
        self.generated_tokens += generated
        self.sampled_total += ask.choices
        if not self._track:
            return
        for digest in ask.digests:
            counts = self._prompts.setdefault(digest, [0])
            counts.extend([0] * (1 + ask.n - len(counts)))
            for choice in range(1, ask.n + 1):
                self.sampled_distinct += not counts[choice]
                counts[choice] += 1

    def ended(self, arrival: Arrival, status: int, code: str = "") -> None:
        arrival.ended, arrival.status, arrival.code = self._clock(), status, code
        self.statuses[status] += 1
        if code:
            self.codes[code] += 1

    def went(self, arrival: Arrival) -> None:
        """Its client went away, or a fault cut its connection."""
        arrival.ended, arrival.status = self._clock(), -1
        if not arrival.fault:
            self.gone += 1

    def faulted(self, arrival: Arrival | None, name: str) -> None:
        self.faults[name] += 1
        if arrival is not None:
            arrival.fault = name

    def connected(self) -> None:
        self.connections += 1
        self.connections_open += 1
        self.connections_peak = max(self.connections_peak, self.connections_open)

    def disconnected(self) -> None:
        self.connections_open -= 1

    # -- what tests ask -----------------------------------------------------------------------------------------

    @property
    def total(self) -> int:
        """Arrivals."""
        return self.kinds["completions"] + self.kinds["chat"] + self.kinds["submit"]

    @property
    def rate_limited(self) -> int:
        """Answers of status 429, whatever their code."""
        return self.statuses[429]

    @property
    def most_arrivals(self) -> int:
        """Most arrivals in any window, exact: (t - window_s, t]."""
        return self.window.peak

    @property
    def sampled_repeated(self) -> int:
        """Samplings of a (prompt, choice) beyond its first. 0 too where prompts are not tracked."""
        return self.sampled_total - self.sampled_distinct if self._track else 0

    def times_sampled(self, prompt: Any) -> list[int]:
        """How often each choice of the prompt was sampled: choice i at place i."""
        return self._prompts.get(prompt_digest(prompt), [0])[1:]

    def attempts(self, prompt: Any) -> int:
        """Arrivals that asked for the prompt."""
        return self._prompts.get(prompt_digest(prompt), [0])[0]

    def prompts(self, prompts: Sequence[Any]) -> list[dict[str, Any]]:
        return [{"attempts": self.attempts(prompt), "sampled": self.times_sampled(prompt)} for prompt in prompts]

    def snapshot(self, *, arrivals: bool = False) -> dict[str, Any]:
        """JSON-ready; with ``arrivals`` the latest ones, one by one."""
        found: dict[str, Any] = {
            "arrivals": self.total,
            "most_arrivals_in_window": self.most_arrivals,
            "window_s": self.window.window_s,
            "kinds": dict(self.kinds),
            "statuses": {str(status): count for status, count in sorted(self.statuses.items())},
            "codes": dict(self.codes),
            "rate_limited": self.rate_limited,
            "faults": dict(self.faults),
            "gone": self.gone,
            "spoiled": self.spoiled,
            "workloads": dict(self.workloads),
            "first_arrival_s": self.first_at,
            "last_arrival_s": self.last_at,
            "attempts_max": self.attempts_max,
            "rollouts": {
                "total": self.sampled_total,
                "distinct": self.sampled_distinct if self._track else None,
                "repeated": self.sampled_repeated if self._track else None,
                "prompts": len(self._prompts) if self._track else None,
            },
            "tokens": {"prompt": self.prompt_tokens, "generated": self.generated_tokens},
            "connections": {
                "opened": self.connections,
                "open": self.connections_open,
                "peak": self.connections_peak,
            },
        }
        if arrivals:
            found["arrivals_list"] = [asdict(arrival) for arrival in self.arrivals]
        return found
