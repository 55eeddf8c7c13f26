"""What all requests of one process share while they are sampled."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext

from brimful.config import Settings
from brimful.names import Workload
from brimful_worker.admission import Admission
from brimful_worker.provider.session import Provider
from brimful_worker.sampling.budget import BudgetGate
from brimful_worker.sampling.health import HealthReporter
from brimful_worker.sampling.suspects import Isolation
from brimful_worker.sampling.usage_check import UsageCheck


class Shared:
    """One process's clients, gates and observations; the base of :class:`brimful_worker.sampling.sampler.Sampler`."""

    def __init__(
        self,
        settings: Settings,
        admission: Admission,
        provider: Provider,
        *,
        uniform: Callable[[], float] = random.random,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """``uniform`` draws from [0, 1). While ``stopping()``, a cancellation means that the work is given back, so
        Jobs are left for the next worker to find."""
        self.settings = settings
        self.admission = admission
        self.provider = provider
        self.uniform = uniform
        self.stopping = stopping
        self.budget = BudgetGate(uniform=uniform)
        self.health = HealthReporter()
        self.usage = UsageCheck()
        self.isolation = Isolation()
        self.worker = f"{socket.gethostname()}:{os.getpid()}"
        profile = settings.profile
        self._share: asyncio.Semaphore | None = None
        if settings.slots_auto or profile.slots > profile.per_process:
            self._share = asyncio.Semaphore(profile.per_process)
        longest_s = settings.timeout_s + settings.connect_timeout_s + settings.backoff_cap_s
        self._short_deadline = settings.deadline_s < 2 * longest_s

    def use(self, admission: Admission, provider: Provider) -> None:
        """Those of another API key, from the next attempts on."""
        self.admission, self.provider = admission, provider
        self.budget = BudgetGate(uniform=self.uniform)

    def share(self, workload: Workload) -> AbstractAsyncContextManager[object]:
        """Bounds this process's batch requests, where the key allows more than a process can carry (Kios: 5,000 per
        process). Interactive requests never wait for it."""
        return nullcontext() if self._share is None or workload is not Workload.BATCH else self._share
