"""The provider as the sampler sees it: send a request under a grant, get a meaning."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urlsplit

from brimful.config import Settings
from brimful.errors import SettingError
from brimful.names import Mode, Workload
from brimful.runtime import json_bytes
from brimful_worker.provider.answers.answer import Answer, Classification, TransportError
from brimful_worker.provider.answers.classify import classify_answer
from brimful_worker.provider.answers.redact import redact
from brimful_worker.provider.assembly import Part
from brimful_worker.provider.endpoints import Endpoints
from brimful_worker.provider.environment import proxy_for, raise_descriptors, tls_context
from brimful_worker.provider.jobs import Hooks, JobPoller, Ticket
from brimful_worker.provider.transport.exchange import Grant, HttpExchange
from brimful_worker.provider.transport.http_client import Http
from brimful_worker.provider.transport.route import Route

OnWire = Callable[[HttpExchange], None]


class Provider:
    """One process's way to the provider, with the one key. ``async with Provider(settings)`` on the loop that uses it.

    Raises SettingError at the start for a URL, proxy or certificate file that cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._profile = settings.profile
        self._endpoints = Endpoints.of(settings.api_base)
        self._urls = {mode: self._endpoints.submit(mode) for mode in Mode}
        self._headers: dict[Workload, dict[str, str]] = {
            workload: {
                "Content-Type": "application/json",
                **({self._profile.workload_header: workload.value} if self._profile.workload_header else {}),
            }
            for workload in Workload
        }
        self._http: Http | None = None
        self._routes: dict[tuple[Mode, Workload], Route] = {}
        key = settings.api_key.get_secret_value()
        if not (key.isascii() and key.isprintable()):
            raise SettingError(
                f"{self._profile.key_env[0]}: the key holds characters that no header can carry (a line break, a "
                "typographic quote?): set it again"
            )

    async def start(self) -> None:
        """Open the session; the process's limit on open files is raised for it."""
        settings = self._settings
        raise_descriptors(min(self._profile.slots, self._profile.per_process))
        self._http = Http(
            headers={
                "Authorization": f"Bearer {settings.api_key.get_secret_value()}",
                "Accept": "application/json",
                "User-Agent": "brimful",
            },
            connect_timeout_s=settings.connect_timeout_s,
            max_bytes=int(settings.max_answer_mb * 2**20),
            tls=tls_context(),
            proxy=proxy_for(self._endpoints.base),
        )
        try:
            self._routes = {
                (mode, workload): self._http.route("POST", url, headers)
                for mode, url in self._urls.items()
                for workload, headers in self._headers.items()
            }
        except ValueError:
            name = self._profile.base_env[0]
            raise SettingError(f"{name}: {settings.api_base!r} is no URL that can be asked") from None

    async def aclose(self) -> None:
        """Close all connections."""
        if self._http is not None:
            http, self._http = self._http, None
            await http.aclose()

    async def __aenter__(self) -> Provider:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def host(self) -> str:
        """For messages."""
        return urlsplit(self._endpoints.base).netloc

    def body(self, part: Part) -> bytes:
        """What is sent for a part."""
        return json_bytes.encode(part.request.body(self._profile))

    async def complete(self, part: Part, body: bytes, grant: Grant, on_wire: OnWire) -> Classification:
        """One request to a completions or chat endpoint. ``grant.sent()``'s StaleGrant comes through."""
        request = part.request
        came = await self._exchange(self._routes[request.mode, request.workload], body, grant, on_wire)
        return self._clean(
            classify_answer(came, expected=len(part.places), prompts=part.prompts, now=time.time()), part
        )

    async def job(
        self, part: Part, body: bytes, grant: Grant, on_wire: OnWire, ticket: Ticket, hooks: Hooks
    ) -> Classification:
        """One request as a Job, to its end; see :mod:`brimful_worker.provider.jobs`."""
        request = part.request
        headers = self._headers[request.workload]

        async def send(
            method: str, path: tuple[str, ...], *, key: str | None, grant: Grant | None
        ) -> Answer | TransportError:
            assert self._http is not None
            if not path:
                assert key is not None
                route = self._http.route("POST", self._urls[request.mode], {**headers, "Idempotency-Key": key})
                return await self._exchange(route, body, grant, on_wire)
            return await self._exchange(
                self._http.route(method, self._endpoints.job(*path), headers), None, grant, None
            )

        talk = JobPoller(send, hooks, ticket, expected=len(part.places), prompts=part.prompts)
        return self._clean(await talk.run(grant), part)

    def _exchange(
        self, route: Route, body: bytes | None, grant: Grant | None, on_wire: OnWire | None
    ) -> Coroutine[Any, Any, Answer | TransportError]:
        assert self._http is not None, "the provider's session is not open"
        return self._http.exchange(route, body, timeout_s=self._settings.timeout_s, grant=grant, on_wire=on_wire)

    def _clean(self, told: Classification, part: Part) -> Classification:
        """Providers quote keys and prompts in their errors; our messages may hold neither."""
        if not told.message:
            return told
        return redact(told, self._settings.api_key.get_secret_value(), part.request)
