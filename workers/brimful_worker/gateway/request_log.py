"""The request log: what reached the mock gateway. Tests and rehearsals measure a fleet by it.

An *arrival* is a request to completions, chat completions or Job submission, whatever its outcome; ``most_arrivals``
also counts refused ones. A *start* is an arrival that the gateway's own window admitted. All times are
``time.monotonic()`` of the gateway, taken when the request's headers have arrived.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import asdict, dataclass
from typing import Any

from brimful_worker.gateway.limits import Window
from brimful_worker.gateway.model.text import prompt_digest
from brimful_worker.gateway.sample_request import SampleRequest


@dataclass(slots=True)
class Arrival:
    """One request. ``status`` is 0 while it is served, and -1 if its connection ended first."""

    at: float
    kind: str
    workload: str
    ended: float = 0.0
    status: int = 0
    code: str = ""
    fault: str = ""
    request_id: str = ""
    prompts: int = 0
    n: int = 0
    max_tokens: int = 0


class RequestLog:
    """Counts of one gateway since its start or the last reset."""

    def __init__(self, *, window_s: float, keep: int, track_prompts: bool) -> None:
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
        """Clients that disconnected, without a fault."""
        self.spoiled = 0
        """Requests whose work was done but whose answer a fault damaged or lost."""
        self.sampled_total = self.sampled_distinct = 0
        self.attempts_max = 0
        """The most arrivals of one prompt."""
        self.prompt_tokens = self.generated_tokens = 0
        self.connections = 0
        self.connections_peak = self.connections_open
        # digest -> [attempts, times choice 0 was sampled, choice 1, ...]
        self._prompts: dict[bytes, list[int]] = {}

    def reset(self) -> None:
        """Clear all counts; the window's peak restarts from the window's current count."""
        self._clear()
        self.window.reset_peak(time.monotonic())

    # -- written by the gateway ---------------------------------------------------------------------------------

    def arrive(self, kind: str, workload: str, request_id: str) -> Arrival:
        now = time.monotonic()
        self.window.admit(now, None)
        self.first_at = now if self.first_at is None else self.first_at
        self.last_at = now
        self.kinds[kind] += 1
        self.workloads[workload] += 1
        arrival = Arrival(now, kind, workload, request_id=request_id)
        self.arrivals.append(arrival)
        return arrival

    def asked(self, arrival: Arrival, request: SampleRequest) -> None:
        """The arrival's body is valid: an attempt at each of its prompts."""
        arrival.prompts, arrival.n, arrival.max_tokens = len(request.prompts), request.n, request.max_tokens
        if self._track:
            for digest in request.digests:
                counts = self._prompts.setdefault(digest, [0])
                counts[0] += 1
                self.attempts_max = max(self.attempts_max, counts[0])

    def sampled(self, request: SampleRequest, generated: int) -> None:
        """All choices were generated, ``generated`` tokens, and will arrive complete."""
        self.prompt_tokens += request.prompt_tokens
        self.generated_tokens += generated
        self.sampled_total += request.choices
        for digest in request.digests if self._track else ():
            counts = self._prompts.setdefault(digest, [0])
            counts.extend([0] * (1 + request.n - len(counts)))
            for choice in range(1, request.n + 1):
                self.sampled_distinct += not counts[choice]
                counts[choice] += 1

    def ended(self, arrival: Arrival, status: int, code: str = "") -> None:
        arrival.ended, arrival.status, arrival.code = time.monotonic(), status, code
        self.statuses[status] += 1
        if code:
            self.codes[code] += 1

    def disconnected_early(self, arrival: Arrival) -> None:
        """Its client disconnected before the answer, or a fault closed the connection."""
        arrival.ended, arrival.status = time.monotonic(), -1
        self.gone += not arrival.fault

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

    # -- read by tests ------------------------------------------------------------------------------------------

    @property
    def total(self) -> int:
        """Arrivals."""
        return self.kinds["completions"] + self.kinds["chat"] + self.kinds["submit"]

    @property
    def most_arrivals(self) -> int:
        """The most arrivals in any window (t - window_s, t], exactly."""
        return self.window.peak

    @property
    def sampled_repeated(self) -> int:
        """How often a (prompt, choice) was sampled after its first time; 0 if prompts are not tracked."""
        return self.sampled_total - self.sampled_distinct if self._track else 0

    def times_sampled(self, prompt: Any) -> list[int]:
        """How often each choice of the prompt was sampled, by choice."""
        return self._prompts.get(prompt_digest(prompt), [0])[1:]

    def attempts(self, prompt: Any) -> int:
        """Arrivals with this prompt."""
        return self._prompts.get(prompt_digest(prompt), [0])[0]

    def snapshot(self, *, arrivals: bool = False) -> dict[str, Any]:
        """All counts as JSON-ready values."""
        found: dict[str, Any] = {
            "arrivals": self.total,
            "most_arrivals_in_window": self.most_arrivals,
            "window_s": self.window.window_s,
            "kinds": dict(self.kinds),
            "statuses": {str(status): count for status, count in sorted(self.statuses.items())},
            "codes": dict(self.codes),
            "rate_limited": self.statuses[429],
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
