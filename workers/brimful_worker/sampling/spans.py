"""The spans of a request and of its attempts. Without a tracer, each costs one look-up.

Attributes have OpenTelemetry's names for HTTP and generative AI where it has one, and begin with ``brimful.`` where it
has none.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from brimful.names import Mode
from brimful.outcome import Outcome
from brimful.request import Request
from brimful.runtime import tracing
from brimful_worker.admission import Lease
from brimful_worker.logs.fields import described
from brimful_worker.provider.answers.answer import Classification
from brimful_worker.provider.assembly import Part
from brimful_worker.sampling.stats import RequestStats

_PROVIDERS = {"azure": "azure.ai.openai"}
"""OpenTelemetry's names of providers, where the profile has another."""
_ASKED = {name: f"gen_ai.request.{name}" for name in ("max_tokens", "temperature", "top_p", "seed")}
_USAGE = {"prompt_tokens": "gen_ai.usage.input_tokens", "completion_tokens": "gen_ai.usage.output_tokens"}

_Sample = TypeVar("_Sample", bound=Callable[..., Coroutine[Any, Any, Outcome]])
_Send = TypeVar("_Send", bound=Callable[..., Coroutine[Any, Any, Classification]])


def traced_request(sample: _Sample) -> _Sample:
    """Decorates ``sample(self, request, …)``: a span of each call, a SERVER's where an ``exchange`` passes the answer
    on to a caller, and a CONSUMER's elsewhere."""

    async def traced(self: Any, request: Request, **more: Any) -> Outcome:
        known = {f"brimful.{name}": value for name, value in described().items()}
        kind = "CONSUMER" if more.get("exchange") is None else "SERVER"
        attributes = {**known, "brimful.mode": request.mode.value, "brimful.workload": request.workload.value}
        with tracing.span("brimful request", kind, attributes) as span:
            outcome = await sample(self, request, **more)
            if span is not None:
                waited_ms = round(outcome.waited_s * 1000)
                tracing.note(span, {"brimful.attempts": outcome.attempts, "brimful.waited_ms": waited_ms})
                if outcome.failure is not None:
                    tracing.fail(span, outcome.failure.cause.value, outcome.failure.message)
            return outcome

    @wraps(sample)
    def call(self: Any, request: Request, **more: Any) -> Coroutine[Any, Any, Outcome]:
        return (sample if tracing.tracer() is None else traced)(self, request, **more)

    return cast("_Sample", call)


def traced_attempt(send: _Send) -> _Send:
    """Decorates ``send(self, part, lease, …)``, which sends one request: a CLIENT's span of each call."""

    async def traced(self: Any, part: Part, lease: Lease, *more: Any) -> Classification:
        last: Classification | None = self.last
        attributes = _asked(self.stats, part, self.sampler.provider.host) | {
            "brimful.waited_ms": round(lease.waited_s * 1000),
            "brimful.retry_cause": last.cause.value if last is not None and last.cause is not None else None,
        }
        with tracing.span("brimful attempt", "CLIENT", attributes) as span:
            answer = await send(self, part, lease, *more)
            if span is not None:
                tracing.note(span, _answered(answer))
                if answer.cause is not None:
                    tracing.fail(span, answer.cause.value, answer.message)
            return answer

    @wraps(send)
    def call(self: Any, part: Part, lease: Lease, *more: Any) -> Coroutine[Any, Any, Classification]:
        return (send if tracing.tracer() is None else traced)(self, part, lease, *more)

    return cast("_Send", call)


def _asked(stats: RequestStats, part: Part, host: str) -> dict[str, Any]:
    request, profile = part.request, stats.profile
    server = urlsplit(f"//{host}")
    numbers = {ours: value for name, ours in _ASKED.items() if type(value := request.fields.get(name)) in (int, float)}
    return {
        "gen_ai.operation.name": "chat" if request.mode is Mode.CHAT else "text_completion",
        "gen_ai.provider.name": _PROVIDERS.get(profile.name, profile.name),
        "gen_ai.request.model": str(request.fields.get("model") or profile.model or "") or None,
        "gen_ai.request.choice.count": request.n if request.n > 1 else None,
        **numbers,
        "server.address": server.hostname,
        "server.port": server.port,
        "brimful.attempt": stats.attempts + 1,
        "brimful.prompts": part.prompts,
    }


def _answered(answer: Classification) -> dict[str, Any]:
    completion = answer.completion or {}
    usage, id, model = completion.get("usage"), completion.get("id"), completion.get("model")
    counts = {ours: usage.get(name) for name, ours in _USAGE.items()} if isinstance(usage, dict) else {}
    reasons = dict.fromkeys(str(choice.get("finish_reason")) for choice in completion.get("choices", ()))
    return {
        "http.response.status_code": answer.status,
        "brimful.provider_request_id": answer.request_id or None,
        "gen_ai.response.id": id if isinstance(id, str) else None,
        "gen_ai.response.model": model if isinstance(model, str) else None,
        "gen_ai.response.finish_reasons": list(reasons) or None,
        **{name: count for name, count in counts.items() if isinstance(count, int)},
    }
