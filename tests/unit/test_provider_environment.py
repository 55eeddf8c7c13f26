"""What the provider's connections take of the process's environment: proxies, certificates, open files."""

from __future__ import annotations

import logging
import resource
import ssl
from pathlib import Path
from typing import NamedTuple

import pytest

from brimful.errors import SettingError
from brimful_worker.provider import environment

_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*_PROXIES, *map(str.upper, _PROXIES), *environment.CA_VARIABLES):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("variables", "url", "proxy"),
    [
        ({}, "https://api.example/v1", None),
        ({"HTTPS_PROXY": "http://p:3128"}, "https://api.example/v1", "http://p:3128"),
        ({"HTTPS_PROXY": "p:3128"}, "https://api.example/v1", "http://p:3128"),
        ({"HTTP_PROXY": "http://p:3128"}, "https://api.example/v1", None),
        ({"ALL_PROXY": "http://p:3128"}, "http://api.example/v1", "http://p:3128"),
        ({"HTTPS_PROXY": "http://p:3128", "NO_PROXY": "other,.example"}, "https://api.example/v1", None),
        ({"https_proxy": "http://p:3128", "no_proxy": "*"}, "https://api.example/v1", None),
    ],
)
def test_proxies(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], url: str, proxy: str | None) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert environment.proxy_for(url) == proxy


class Bypass(NamedTuple):
    url: str
    no_proxy: str
    bypassed: bool


@pytest.mark.parametrize(
    "case",
    [
        Bypass("http://[::1]:8000/v1", "::1", True),
        Bypass("http://[::1]:8000/v1", "[::1]", True),
        Bypass("http://[::1]:8000/v1", "[::1]:8000", True),
        Bypass("http://[::1]:8000/v1", "[::1]:9000", False),
        Bypass("http://[::1]/v1", "localhost, ::1 ,127.0.0.1", True),
        Bypass("http://[0:0:0:0:0:0:0:1]/v1", "::1", True),
        Bypass("http://[fd00::5]/v1", "fd00::/8", True),
        Bypass("http://[fe80::5]/v1", "fd00::/8", False),
        Bypass("http://10.1.2.3/v1", "10.0.0.0/8", True),
        Bypass("http://11.1.2.3/v1", "10.0.0.0/8", False),
        Bypass("http://10.1.2.3/v1", "10.1.2.3:81,,10.0.0.0/8", True),
        Bypass("http://127.0.0.1:8000/v1", "127.0.0.1", True),
        Bypass("http://api.example/v1", "example", True),
        Bypass("http://api.example/v1", ".example", True),
        Bypass("http://api.example/v1", "*.example", True),
        Bypass("http://API.Example./v1", "api.EXAMPLE", True),
        Bypass("http://api.example/v1", "pi.example", False),
        Bypass("http://api.example/v1", "api.example:80", True),
        Bypass("http://api.example:8080/v1", "api.example:80", False),
        Bypass("http://api.example/v1", "*", True),
        Bypass("http://api.example/v1", "", False),
        Bypass("http://api.example/v1", ",,", False),
        Bypass("http://api.example/v1", "other", False),
    ],
    ids=lambda case: f"{case.url} {case.no_proxy or '-'}",
)
def test_what_no_proxy_names_goes_past_the_proxy(monkeypatch: pytest.MonkeyPatch, case: Bypass) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", case.no_proxy)
    assert environment.proxy_for(case.url) == (None if case.bypassed else "http://proxy:3128")


def test_a_refusal_of_a_proxy_shows_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "u:sesame://@p:1080")
    with pytest.raises(SettingError, match="HTTPS_PROXY: this kind of proxy") as refused:
        environment.proxy_for("https://api.example/v1")
    assert "sesame" not in str(refused.value)


def test_a_socks_proxy_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "socks5://p:1080")
    with pytest.raises(SettingError, match="HTTPS_PROXY: a socks5:// proxy"):
        environment.proxy_for("https://api.example/v1")


def test_certificate_authorities(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert environment.tls_context() is True
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "none.pem"))
    with pytest.raises(SettingError, match=r"REQUESTS_CA_BUNDLE: .*none\.pem"):
        environment.tls_context()
    (tmp_path / "junk.pem").write_text("junk")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "junk.pem"))
    with pytest.raises(SettingError, match="SSL_CERT_FILE"):
        environment.tls_context()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path))
    assert isinstance(environment.tls_context(), ssl.SSLContext)


def test_the_limit_on_open_files_is_raised_or_explained(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limits = [256, 4096]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))

    def setrlimit(_: int, wanted: tuple[int, int]) -> None:
        limits[:] = wanted

    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    assert environment.raise_open_file_limit(2000) == 4096
    assert caplog.records == []
    with caplog.at_level(logging.WARNING):
        environment.raise_open_file_limit(5000)
    assert "may open 4096 files, but 5000 concurrent requests" in caplog.text


def test_where_the_hard_limit_is_refused_as_many_files_as_needed_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS refuses its own hard limit."""
    limits = [256, 4096]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))

    def setrlimit(_: int, wanted: tuple[int, int]) -> None:
        if wanted[0] == 4096:
            raise ValueError
        limits[:] = wanted

    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    assert environment.raise_open_file_limit(2000) == 2256


@pytest.mark.parametrize("soft", [256, -1])
def test_without_a_hard_limit_there_is_none(monkeypatch: pytest.MonkeyPatch, soft: int) -> None:
    limits = [soft, resource.RLIM_INFINITY]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: limits.__setitem__(slice(None), wanted))
    assert environment.raise_open_file_limit(2000) is None
