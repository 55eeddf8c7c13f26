"""How long a request takes, from its size. Pure."""

from __future__ import annotations

from brimful_worker.gateway.options import GatewayOptions


def latency_s(options: GatewayOptions, *, max_tokens: int, choices: int, random: float = 0.5) -> float:
    """Seconds of a request of ``choices`` = prompts x n, each of ``max_tokens``. ``random`` in [0, 1) is for jitter."""
    if options.proportional:
        seconds = (options.latency_s + options.per_token_s * max_tokens) * choices
    else:
        batch = 1 + options.batch_factor * (choices - 1)
        seconds = options.latency_s + options.per_token_s * max_tokens * batch
    return max(0.0, seconds * (1 + options.jitter * (2 * random - 1)))
