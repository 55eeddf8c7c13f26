"""Checks of the provider with one ``GET /models``: the URL is set, something answers there, the key is accepted."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Iterator
from urllib.parse import urlsplit

from brimful.config import Settings
from brimful.credentials import filled_headers, shown_url
from brimful.doctor import Check, Level
from brimful.errors import SettingError
from brimful.profile import Profile
from brimful.state.probes import failure_reason

_TIMEOUT_S = 10.0


def provider_checks(settings: Settings, *, client_only: bool) -> Iterator[Check]:
    """``client_only``: a fleet runs elsewhere, and only its workers need URL and key."""
    missing = Level.NOTE if client_only else Level.FAIL
    todo = "nothing, if this machine only enqueues: the workers have it" if client_only else ""
    base = key = None
    try:
        base = settings.api_base
    except SettingError as error:
        yield Check("provider URL", missing, str(error), todo)
    try:
        key = settings.api_key.get_secret_value()
    except SettingError as error:
        yield Check("API key", missing, str(error), todo)
    if key is not None and (len(key.split()) != 1 or not key.isascii() or not key.isprintable()):
        said = "it contains spaces or characters that an HTTP header cannot hold"
        yield Check("API key", Level.FAIL, said, "copy it again, without quotes")
        key = None
    if base is None:
        return
    parts = urlsplit(base)
    if parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        yield Check("provider URL", Level.WARN, f"{shown_url(base)}: the key is sent unencrypted", "use https://")
    if key is not None:
        try:
            yield _ask(_models_url(base, settings.profile), key, settings.profile)
        except SettingError as error:
            yield Check("provider", Level.FAIL, str(error), "")


def _models_url(base: str, profile: Profile) -> str:
    parts = urlsplit(base)
    return parts._replace(path=f"{parts.path or profile.base_path}/models").geturl()


def _ask(url: str, key: str, profile: Profile) -> Check:
    headers = {"User-Agent": "brimful-doctor", "Accept": "application/json", **filled_headers(profile.headers)}
    headers[profile.key_header] = profile.key_prefix + key
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - api_base is http or https
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=_TIMEOUT_S) as answer:
            status = answer.status
    except urllib.error.HTTPError as error:
        with error:
            status = error.code
    except (OSError, http.client.HTTPException, ValueError) as error:
        todo = "check the URL, the network and any proxy"
        return Check("provider", Level.FAIL, f"GET {shown_url(url)}: {failure_reason(error)}", todo)
    level, said, todo = _judge(status, profile.name)
    return Check("provider", level, f"GET {shown_url(url)}: {status}{said}", todo)


def _judge(status: int, provider: str) -> tuple[Level, str, str]:
    if status in (401, 403):
        return Level.FAIL, ", the key is refused", f"check the key, and that it belongs to this URL ({provider})"
    if 200 <= status < 300:
        return Level.OK, ", the key is accepted (no tokens were spent)", ""
    if status == 429:
        return Level.OK, ", it answers; the key's limits are used up at this moment", ""
    if status in (404, 405, 501):
        return (
            Level.NOTE,
            "; it answers but lists no models, so the key could not be checked",
            "if requests fail with 404, the URL lacks its path (often /v1)",
        )
    if 300 <= status < 400:
        return Level.FAIL, ", a redirect", "set the URL that it redirects to"
    return Level.WARN, "", "if this persists, the provider has a fault"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Sends the key to no other host than the one that was named."""

    def redirect_request(self, *_: object) -> None:
        return None
