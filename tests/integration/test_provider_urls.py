"""The matrix of provider URLs, proxies and redirects: where a request goes, or why it goes nowhere."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from brimful.config import Settings
from brimful.errors import SettingError
from brimful.outcome import Cause
from support.provider_server import Completions, serving
from support.sampling import bench

VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, *map(str.upper, VARIABLES)):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
async def servers() -> AsyncIterator[tuple[str, Completions, str, Completions]]:
    """A provider on ::1 and on 127.0.0.1, and a proxy."""
    provider, proxy = Completions(), Completions()
    async with serving(provider, host="::1") as url, serving(proxy) as through:
        yield url, provider, through, proxy


@pytest.mark.parametrize(
    ("base", "path"),
    [
        ("{}", "/v1/completions"),
        ("{}/", "/v1/completions"),
        ("{}/v1", "/v1/completions"),
        ("{}/v1/", "/v1/completions"),
        (" {}/v1 ", "/v1/completions"),
        ("HTTP://{host}/v1", "/v1/completions"),
        ("Http://{host}", "/v1/completions"),
        ("{}/v1/completions", "/v1/completions"),
        ("{}/v1/chat/completions/", "/v1/completions"),
        ("{}/api/v2?api-version=3", "/api/v2/completions?api-version=3"),
        ("http://user:pw@{host}/v1", "/v1/completions"),
    ],
)
async def test_every_usual_form_of_the_base_url(
    servers: tuple[str, Completions, str, Completions], monkeypatch: pytest.MonkeyPatch, base: str, path: str
) -> None:
    url, provider, *_ = servers
    async with bench(monkeypatch, base.format(url, host=url.removeprefix("http://"))) as it:
        assert (await it.sample()).ok
    assert [request[0] for request in provider.requests] == [path]


@pytest.mark.parametrize("base", ["", "host/v1", "ftp://host", "http:/host", "://host", "http://", "http://host:0"])
def test_a_base_url_that_is_none_names_its_variable(monkeypatch: pytest.MonkeyPatch, base: str) -> None:
    monkeypatch.setenv("ACS_API_BASE", base)
    with pytest.raises(SettingError, match="ACS_API_BASE"):
        _ = Settings.load().api_base


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
@pytest.mark.parametrize("form", ["http://{}", "HTTP://{}", "{}", "http://me:secret@{}"])
async def test_every_usual_form_of_a_proxy(
    servers: tuple[str, Completions, str, Completions], monkeypatch: pytest.MonkeyPatch, name: str, form: str
) -> None:
    url, provider, through, proxy = servers
    monkeypatch.setenv(name, form.format(through.removeprefix("http://")))
    async with bench(monkeypatch, url) as it:
        assert (await it.sample()).ok
    assert (len(proxy.requests), len(provider.requests)) == (1, 0)


async def test_no_proxy_names_an_ipv6_provider(
    servers: tuple[str, Completions, str, Completions], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, provider, through, proxy = servers
    monkeypatch.setenv("HTTP_PROXY", through)
    monkeypatch.setenv("NO_PROXY", "::1")
    async with bench(monkeypatch, url) as it:
        assert (await it.sample()).ok
    assert (len(proxy.requests), len(provider.requests)) == (0, 1)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("https://api.example/v1/completions?key=secret", "HTTP {}: the provider redirects to https://api.example,"),
        ("//other.example:8443/v1", "HTTP {}: the provider redirects to other.example:8443,"),
        ("/v2/completions", "HTTP {}: the provider redirects to another path,"),
        ("HTTPS://user:secret@other.example", "HTTP {}: the provider redirects to https://other.example,"),
        ("http://[::1", "HTTP {}: the provider redirects to another path,"),
        ("", "HTTP {}: the provider redirects to another path,"),
    ],
)
async def test_a_redirect_is_a_bad_request_with_its_target(
    monkeypatch: pytest.MonkeyPatch, status: int, location: str, said: str
) -> None:
    async def handler(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=status, headers={"Location": location} if location else {})

    async with serving(handler) as url, bench(monkeypatch, url) as it:
        outcome = await it.sample()
    assert outcome.failure is not None
    assert (outcome.failure.cause, outcome.failure.permanent, outcome.failure.status) == (
        Cause.BAD_REQUEST,
        True,
        status,
    )
    assert outcome.failure.message.startswith(said.format(status))
    assert "set the base URL" in outcome.failure.message
    assert "secret" not in outcome.failure.message
    assert outcome.attempts == 1
