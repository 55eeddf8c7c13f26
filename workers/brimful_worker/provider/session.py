"""The provider as the sampler sees it: sends a request under a grant, and classifies the answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Self
from urllib.parse import urlsplit

from pydantic import SecretStr

from brimful.config import Settings
from brimful.credentials import MIN_KEY_CHARS, filled_headers, first_set, header_variables, query_secrets, shown_url
from brimful.errors import SettingError
from brimful.names import Mode, Workload
from brimful.runtime import json_bytes
from brimful_worker.provider.answers.answer import Answer, Classification, TransportError
from brimful_worker.provider.answers.classify import classify_answer
from brimful_worker.provider.answers.redact import redact
from brimful_worker.provider.assembly import Part
from brimful_worker.provider.endpoints import Endpoints
from brimful_worker.provider.environment import proxy_for, raise_open_file_limit, tls_context
from brimful_worker.provider.jobs import Hooks, JobKey, JobPoller
from brimful_worker.provider.transport.connections import Route
from brimful_worker.provider.transport.exchange import Grant
from brimful_worker.provider.transport.http_client import HttpClient, Listen

OnSent = Callable[[], None]
"""Called just before a request's first byte is written."""


class Provider:
    """One process's session with the provider. Use ``async with Provider(settings)`` on the loop that sends requests.

    Entering raises the process's limit on open files. It raises SettingError for an invalid URL, proxy or certificate
    file, and the constructor for an invalid key.
    """

    _http: HttpClient

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._profile = settings.profile
        self._endpoints = Endpoints.of(settings.api_base, settings.profile.base_path)
        self._api_key = settings.api_key  # a SecretStr: it may not appear in a repr
        key = self._api_key.get_secret_value()
        if not (key.isascii() and key.isprintable()):
            raise SettingError(
                f"{self._profile.key_env[0]}: the key contains characters that a header cannot carry (a line break, a "
                "typographic quote?): set it again"
            )
        self._secrets = [(self._api_key, "key")]
        for name in header_variables(self._profile.headers):
            if (value := first_set((name,))) is not None:
                self._secrets.append((SecretStr(value.strip()), name))
        self._routes: dict[tuple[Mode, Workload], Route] = {}

    async def __aenter__(self) -> Self:
        settings = self._settings
        most = self._profile.per_process
        raise_open_file_limit(most if settings.slots_auto else min(self._profile.slots, most))
        self._http = HttpClient(
            headers={
                "Accept": "application/json",
                "User-Agent": "brimful",
                **filled_headers(self._profile.headers),
                self._profile.key_header: self._profile.key_prefix + self._api_key.get_secret_value(),
            },
            timeout_s=settings.timeout_s,
            connect_timeout_s=settings.connect_timeout_s,
            max_bytes=int(settings.max_answer_mb * 2**20),
            tls=tls_context(),
            proxy=proxy_for(self._endpoints.base),
        )
        try:
            self._routes = {
                (mode, workload): self._http.route("POST", self._endpoints.submit(mode), self._headers(workload))
                for mode in Mode
                for workload in Workload
            }
        except ValueError:
            name = self._profile.base_env[0]
            raise SettingError(f"{name}: invalid provider URL {shown_url(settings.api_base)!r}") from None
        # As it is set, and as the provider receives it.
        for url in (settings.api_base, *(str(route.target.url) for route in self._routes.values())):
            known = {secret.get_secret_value() for secret, _ in self._secrets}
            found = query_secrets(url).items()
            self._secrets += [(SecretStr(value), name) for value, name in found if value not in known]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    @property
    def host(self) -> str:
        """``host:port``, for messages."""
        return urlsplit(self._endpoints.base).netloc

    def body(self, part: Part) -> bytes:
        """The JSON body of a part's request."""
        return json_bytes.encode(part.request.body(self._profile))

    async def complete(self, part: Part, body: bytes, grant: Grant, on_sent: OnSent) -> Classification:
        """Send one request to the completions or chat endpoint. Raises StaleGrant from ``grant.sent()``."""
        return self.classify(await self.exchange(part, body, grant, on_sent), part)

    def exchange(
        self, part: Part, body: bytes, grant: Grant, on_sent: OnSent, listen: Listen | None = None
    ) -> Coroutine[Any, Any, Answer | TransportError]:
        """As :meth:`complete`, with the answer as it came. ``listen`` may take a body as it comes."""
        route = self._routes[part.request.mode, part.request.workload]
        return self._http.exchange(route, body, grant, on_sent, listen)

    def classify(self, answer: Answer | TransportError, part: Part) -> Classification:
        """What the answer to a part's request means."""
        classification = classify_answer(
            answer, expected=len(part.choice_indexes), prompts=part.prompts, now=time.time()
        )
        if isinstance(answer, Answer):
            classification.request_id = answer.request_id
        return self.redact(classification, part)

    async def models(self) -> Answer | TransportError:
        """``GET /models``. It takes no slot and no start."""
        route = self._http.route("GET", self._endpoints.models, {})
        return await self._http.exchange(route, None, None)

    def conceal(self, body: bytes) -> bytes:
        """A body of the provider's without the API key and other secrets, where it quotes them."""
        for secret, name in self._secrets:
            if len(secret) >= MIN_KEY_CHARS:
                body = body.replace(secret.get_secret_value().encode(), f"[{name}]".encode())
        return body

    async def job(
        self, part: Part, body: bytes, grant: Grant, on_sent: OnSent, key: JobKey, hooks: Hooks
    ) -> Classification:
        """Run one request as a Job, until it has ended; see :mod:`brimful_worker.provider.jobs`."""
        headers = self._headers(part.request.workload)
        submitted = ""

        async def send(
            method: str, path: tuple[str, ...], *, key: JobKey | None, grant: Grant | None
        ) -> Answer | TransportError:
            if key is None:
                route = self._http.route(method, self._endpoints.job(*path), headers)
                return await self._http.exchange(route, None, grant)
            url = self._endpoints.submit(part.request.mode)
            route = self._http.route(method, url, {**headers, "Idempotency-Key": str(key)})
            answer = await self._http.exchange(route, body, grant, on_sent)
            nonlocal submitted
            submitted = answer.request_id if isinstance(answer, Answer) else ""
            return answer

        poller = JobPoller(send, hooks, key, expected=len(part.choice_indexes), prompts=part.prompts)
        classification = await poller.run(grant)
        return self.redact(replace(classification, request_id=submitted), part)

    def _headers(self, workload: Workload) -> dict[str, str]:
        headers = {"Content-Type": "application/json"}
        if self._profile.workload_header:
            headers[self._profile.workload_header] = workload.value
        return headers

    def redact(self, classification: Classification, part: Part) -> Classification:
        """Without secrets and prompts: providers quote both in their errors, and our messages may contain neither."""
        if not classification.message:
            return classification
        secrets = {secret.get_secret_value(): name for secret, name in self._secrets}
        return redact(classification, secrets, part.request)
