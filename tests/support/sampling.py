"""A sampler in the test's own process: settings, provider session and a fake admission."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import pytest

from brimful.config import Settings
from brimful.outcome import Outcome
from brimful.request import Request
from brimful_worker.admission import Admission, Lease
from brimful_worker.provider import Provider
from brimful_worker.provider.answers.answer import Classification
from brimful_worker.provider.assembly import Part
from brimful_worker.provider.session import OnSent
from brimful_worker.sampling.sampler import Sampler
from support.fake_admission import FakeAdmission

KEY = "sk-canary-5f2d9c"


@dataclass
class Bench:
    settings: Settings
    admission: FakeAdmission
    provider: Provider
    sampler: Sampler

    def request(self, prompt: Any = "The sky is", **fields: Any) -> Request:
        fields.setdefault("max_tokens", 4)
        if "messages" in fields:
            return Request.parse(fields, self.settings.profile)
        return Request.parse({"prompt": prompt, **fields}, self.settings.profile)

    async def sample(self, prompt: Any = "The sky is", **fields: Any) -> Outcome:
        return await self.sampler.sample(self.request(prompt, **fields))


class Scripted:
    """An exchange without HTTP: one attempt after the other ends with the next of the answers."""

    begun = False

    def __init__(self, *answers: Classification, unsent: int = 0) -> None:
        """``unsent``: so many first attempts end before anything was sent."""
        self._answers = list(answers)
        self._unsent = unsent
        self.parts: list[Part] = []

    async def send(self, provider: Provider, part: Part, body: bytes, lease: Lease, on_sent: OnSent) -> Classification:
        self.parts.append(part)
        if len(self.parts) > self._unsent:
            lease.sent()
            on_sent()
        await asyncio.sleep(0)
        return self._answers.pop(0)


@asynccontextmanager
async def bench(
    monkeypatch: pytest.MonkeyPatch, url: str, admission: FakeAdmission | None = None, **settings: Any
) -> AsyncIterator[Bench]:
    """``settings`` are Settings' fields; backing off is quick unless they say otherwise."""
    for name in ("ACS", "OPENAI", "KIOS"):
        monkeypatch.setenv(f"{name}_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_BASE_URL" if name == "OPENAI" else f"{name}_API_BASE", url)
    settings = {"backoff_base_s": 0.01, "backoff_cap_s": 0.05, "job_poll_s": 0.02, **settings}
    loaded = Settings.load(**settings)
    admission = admission or FakeAdmission(loaded.profile.slots)
    async with Provider(loaded) as provider:
        yield Bench(loaded, admission, provider, Sampler(loaded, cast(Admission, admission), provider))
