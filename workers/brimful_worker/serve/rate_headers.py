"""The ``x-ratelimit-*`` headers, from what the admission's last command brought: they cost no command of their own."""

from __future__ import annotations

from collections.abc import Callable

from brimful_worker.admission.policy import WindowUse


class RateHeaders:
    """One process's view of the fleet's window."""

    def __init__(self, window: Callable[[], WindowUse | None]) -> None:
        self._window = window

    def headers(self) -> dict[str, str]:
        """Limit, remaining and reset of requests and of tokens, as far as they are limited.

        The reset is when the window will be empty if nothing more starts: a window after the request that asks.
        """
        window = self._window()
        if window is None:
            return {}
        found = {}
        reset = _duration(window.length_s)
        limits = (("requests", window.starts, window.starts_used), ("tokens", window.tokens, window.tokens_used))
        for name, limit, used in limits:
            if limit:
                found[f"x-ratelimit-limit-{name}"] = str(limit)
                found[f"x-ratelimit-remaining-{name}"] = str(max(0, limit - used))
                found[f"x-ratelimit-reset-{name}"] = reset
        return found


def _duration(seconds: float) -> str:
    """As OpenAI writes it: ``1m0.8s``."""
    minutes, rest = divmod(round(seconds, 3), 60)
    return f"{int(minutes)}m{rest:g}s" if minutes else f"{rest:g}s"
