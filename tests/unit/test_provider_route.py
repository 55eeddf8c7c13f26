"""The head of a request: its exact bytes, and no way to inject a header."""

from __future__ import annotations

import pytest

from brimful.config import Settings
from brimful.errors import SettingError
from brimful_worker.provider import Provider
from brimful_worker.provider.transport.connections import Route

HEADERS = {"Authorization": "Bearer sk-1", "User-Agent": "brimful", "Accept": "application/json"}


def head(route: Route, body: bytes | None) -> list[str]:
    lines = route.head(body).decode("ascii").split("\r\n")
    assert lines[-2:] == ["", ""]
    return lines[:-2]


async def test_content_length_is_the_length_of_the_body() -> None:
    route = Route("POST", "https://host:8443/v1/completions?api-version=1", HEADERS)
    for body in (b"{}", b"x" * 100_000):
        first, *rest = head(route, body)
        assert first == "POST /v1/completions?api-version=1 HTTP/1.1"
        assert rest[0] == "Host: host:8443"
        assert {"Authorization: Bearer sk-1", "User-Agent: brimful", "Accept: application/json"} < set(rest)
        assert [line for line in rest if line.startswith("Content-Length")] == [f"Content-Length: {len(body)}"]


async def test_without_a_body_a_post_has_content_length_0_and_a_get_has_none() -> None:
    assert "Content-Length: 0" in head(Route("POST", "http://host/cancel", HEADERS), None)
    assert not any("Length" in line for line in head(Route("GET", "http://host/v1/job", HEADERS), None))


@pytest.mark.parametrize("port", ["", ":8080"])
async def test_an_http_proxy_gets_the_absolute_url_and_a_tunnel_the_path(port: str) -> None:
    plain = Route("GET", f"http://host{port}/v1/a%20b", HEADERS, proxy="http://proxy:3128")
    assert head(plain, None)[:2] == [f"GET http://host{port}/v1/a%20b HTTP/1.1", f"Host: host{port}"]
    plain.target.headers["Proxy-Authorization"] = "Basic abc"  # as aiohttp does when it connects
    assert "Proxy-Authorization: Basic abc" in head(plain, None)
    assert head(Route("GET", "https://host/v1/a", HEADERS, proxy="http://proxy:3128"), None)[0] == "GET /v1/a HTTP/1.1"


@pytest.mark.parametrize("value", ["one\r\nX-Injected: 1", "two\nlines", "nul\0", "tab\tab"])
async def test_a_header_with_unprintable_characters_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="printable") as raised:
        Route("POST", "http://host/v1", {"Idempotency-Key": value})
    assert value not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    ["http://", "http://:80/v1", "http://[::1/v1", "https:///v1", "http://h:99999", "http://h:x/v1", "http://h:0"],
)
async def test_an_invalid_url_is_refused_when_the_worker_starts(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACS_API_KEY", "sk-canary")
    monkeypatch.setenv("ACS_API_BASE", url)
    with pytest.raises(SettingError, match="ACS_API_BASE") as raised:
        async with Provider(Settings.load()):
            pass
    assert "sk-canary" not in str(raised.value)
