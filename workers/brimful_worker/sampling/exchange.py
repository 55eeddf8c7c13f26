"""The interface by which the sampler sends a request and reads its answer. Callers of the sampler implement it."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

from brimful_worker.admission import Lease
from brimful_worker.provider.answers.answer import Classification
from brimful_worker.provider.assembly import Part
from brimful_worker.provider.session import OnSent, Provider


class Exchange(Protocol):
    """One request's; used for all its attempts."""

    @property
    def begun(self) -> bool:
        """A part of the answer has reached the caller: the request cannot be attempted again."""

    def send(
        self, provider: Provider, part: Part, body: bytes, lease: Lease, on_sent: OnSent
    ) -> Coroutine[Any, Any, Classification]:
        """One attempt. ``body``: the part as JSON. Raises StaleGrant from ``lease.sent()``."""
