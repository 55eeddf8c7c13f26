"""What the broker's bookkeeping reads of a Celery request."""

from __future__ import annotations

from types import SimpleNamespace


class FakeRequest:
    def __init__(self, tag: str, *, queue: str = "batch", acknowledged: bool = False, eta: str | None = None) -> None:
        self.message = SimpleNamespace(delivery_tag=tag)
        self.queue = queue
        self.acknowledged = acknowledged
        self.eta = eta
        self.left = False
        """Whether its message has left its place."""
