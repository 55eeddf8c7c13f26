"""The provider: is there a URL, does it answer, is the key accepted. One ``GET /models``: no tokens are spent."""

from __future__ import annotations

import http.client
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from urllib.parse import urlsplit

from brimful.config import Settings
from brimful.doctor.check import Check, Level
from brimful.errors import SettingError

_TIMEOUT_S = 10.0


def provider_checks(settings: Settings, *, client_only: bool) -> Iterator[Check]:
    """``client_only``: a fleet is there already, and only its workers need URL and key."""
    profile = settings.profile
    missing = Level.NOTE if client_only else Level.FAIL
    todo = "nothing, if this machine only enqueues: the workers have them" if client_only else ""
    try:
        base = settings.api_base
    except SettingError as error:
        yield Check("provider URL", missing, str(error), todo)
        base = None
    try:
        key = settings.api_key.get_secret_value()
    except SettingError as error:
        yield Check("API key", missing, str(error), todo)
        key = None
    if key is not None and (len(key.split()) != 1 or not key.isascii() or not key.isprintable()):
        yield Check(
            "API key", Level.FAIL, "it holds spaces or signs that no header may", "copy it again, without quotes"
        )
        key = None
    if base is not None:
        parts = urlsplit(base)
        local = parts.hostname in ("localhost", "127.0.0.1", "::1")
        if parts.scheme == "http" and not local:
            yield Check("provider URL", Level.WARN, f"{_bare(base)}: the key travels unencrypted", "use https://")
        if key is not None:
            yield from _ask(base, key, profile.name)


def _ask(base: str, key: str, provider: str) -> Iterator[Check]:
    shown = _bare(f"{base}/models")
    request = urllib.request.Request(  # noqa: S310 - api_base is http or https
        shown, headers={"Authorization": f"Bearer {key}", "User-Agent": "brimful-doctor", "Accept": "application/json"}
    )
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=_TIMEOUT_S) as answer:
            status = answer.status
    except urllib.error.HTTPError as error:
        with error:
            status = error.code
    except (OSError, http.client.HTTPException, ValueError) as error:
        yield Check(
            "provider", Level.FAIL, f"GET {shown}: {_reason(error)}", "check the URL, the network and any proxy"
        )
        return
    if status in (401, 403):
        yield Check(
            "provider",
            Level.FAIL,
            f"GET {shown}: {status}, the key is refused",
            f"check the key, and that it belongs to this URL ({provider})",
        )
    elif 200 <= status < 300:
        yield Check("provider", Level.OK, f"GET {shown}: {status}, the key is accepted (no tokens were spent)")
    elif status == 429:
        yield Check("provider", Level.OK, f"GET {shown}: 429, it answers; the key's limits are in use right now")
    elif status in (404, 405, 501):
        yield Check(
            "provider",
            Level.NOTE,
            f"GET {shown}: {status}; it answers, but lists no models: whether the key is accepted was not seen",
            "if requests fail with 404, the URL lacks its path (often /v1)",
        )
    elif 300 <= status < 400:
        yield Check("provider", Level.FAIL, f"GET {shown}: {status}, a redirect", "set the URL it redirects to")
    else:
        yield Check("provider", Level.WARN, f"GET {shown}: {status}", "if it stays, the provider is unwell")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The key goes to the host that was named and to no other."""

    def redirect_request(self, *_: object) -> None:
        return None


def _bare(url: str) -> str:
    """``url`` without a user and password that it may hold."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _reason(error: Exception) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, (TimeoutError, socket.timeout)):
        return f"no answer within {_TIMEOUT_S:.0f} s"
    if isinstance(cause, ssl.SSLError):
        return f"TLS: {cause.reason or 'failed'}"
    if isinstance(cause, socket.gaierror):
        return f"the host's name is not known ({cause.strerror})"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return type(cause).__name__
