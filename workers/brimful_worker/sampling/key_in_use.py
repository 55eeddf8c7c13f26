"""The API key in use: its admission and its session with the provider, replaced when the key's file changes.

Each key has an admission of its own, since a provider's limits belong to a key. Requests on the wire end under the key
that they were sent with; what waits, and all retries, go on under the new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from brimful.config import Settings
from brimful.credentials import read_key
from brimful.errors import FleetError, SettingError
from brimful.state.redis_url import required
from brimful_worker.admission import Admission
from brimful_worker.provider import Provider

log = logging.getLogger(__name__)

_LOOK_S = 2.0
_DRAIN_S = 0.5


class KeyInUse:
    """The API key that one process uses. Use it on the process's event loop."""

    def __init__(self, settings: Settings, name: str, concurrency: int) -> None:
        """``name``: the process's, for ``brimful status``. ``concurrency``: tasks that it runs at once. Opens nothing.
        Raises SettingError."""
        self.settings = settings
        """With the key in use."""
        self._name, self._concurrency = name, concurrency
        self._file = settings.api_key_file
        self.admission = Admission.from_settings(settings, name=name, places=concurrency)
        self.provider = Provider(settings)
        self.reread = asyncio.Event()
        """Set it to look at the file at once."""
        self._leaving = asyncio.Event()
        self._draining: set[asyncio.Task[None]] = set()
        self._retired: set[Admission] = set()

    async def open(self) -> None:
        """Open the session with the provider. Raises SettingError."""
        await self.provider.__aenter__()

    async def close(self) -> None:
        """Close the session, after :meth:`leave`."""
        await self.provider.__aexit__()

    async def leave(self) -> None:
        """Close all admissions, and the sessions of replaced keys."""
        self._leaving.set()
        await asyncio.gather(*self._draining, return_exceptions=True)
        await self.admission.aclose()

    @property
    def stall_limit_s(self) -> float:
        """The shortest of all keys that requests are on the wire with; see :attr:`Admission.stall_limit_s`."""
        return min(each.stall_limit_s for each in (self.admission, *self._retired))

    async def follow(self, on_replaced: Callable[[], None]) -> None:
        """Use the key that the file holds, again and again. Returns at once if the key is from no file."""
        if self._file is None:
            return
        problem = ""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self.reread.wait()
            self.reread.clear()
            try:
                key = await asyncio.to_thread(read_key, self._file)
                if key != self.settings.api_key:
                    await self._replace(self.settings.placed(redis_url=required(self.settings.redis_url), api_key=key))
                    on_replaced()
                problem = ""
            except (SettingError, FleetError) as error:  # the key in use may still be good
                if str(error) != problem:
                    log.error("%s; the key in use is kept", error)
                problem = str(error)

    async def _replace(self, settings: Settings) -> None:
        """Raises SettingError for a key that no header can carry, and FleetError; the old one then stays in use."""
        provider = Provider(settings)
        admission = Admission.from_settings(settings, name=self._name, places=self._concurrency)
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(provider)
            await admission.start(timeout_s=None)
            stack.pop_all()
        old = self.admission, self.provider
        self.settings, self.admission, self.provider = settings, admission, provider
        log.info("the API key was replaced: requests use the one that is now in %s", self._file)
        self._retired.add(old[0])
        old[0].retire()
        draining = asyncio.create_task(self._drain(*old))
        self._draining.add(draining)
        draining.add_done_callback(self._draining.discard)

    async def _drain(self, admission: Admission, provider: Provider) -> None:
        """Close them once their last request has ended, or when the process leaves."""
        try:
            while admission.held and not self._leaving.is_set():  # releases have no event, and this is rare
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_DRAIN_S):
                        await self._leaving.wait()
        finally:
            self._retired.discard(admission)
            await admission.aclose()
            await provider.__aexit__()
