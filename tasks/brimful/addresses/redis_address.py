"""A Redis URL, parsed. The only code that knows the form of ``BRIMFUL_REDIS_URL``.

==========================================================  ==================================================
``redis://[USER][:PASSWORD]@HOST[:6379][/DB]``              a server
``rediss://…``                                              the same over TLS
``unix:///PATH[?db=DB]``                                    a socket on this machine
``sentinel://HOST[:26379][;HOST…][/DB]?master=NAME``        the primary that these Sentinels name
==========================================================  ==================================================

User, password and path are percent-encoded. ``username``, ``password`` and ``db`` may be query parameters instead. TLS
parameters are :data:`TLS_PARAMETERS`; Sentinels take ``ssl=true``, ``sentinel_username`` and ``sentinel_password`` too.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from brimful.errors import SettingError

SCHEMES = ("redis", "rediss", "unix", "sentinel")
TLS_PARAMETERS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
"""Query parameters with redis-py's names. Certificates are verified unless ``ssl_cert_reqs=none``."""
_PORTS = {"redis": 6379, "rediss": 6379, "sentinel": 26379}
_PARAMETERS = {
    "redis": {"db", "username", "password"},
    "rediss": {"db", "username", "password", *TLS_PARAMETERS},
    "unix": {"db", "username", "password"},
    "sentinel": {
        *("db", "username", "password", "master", "ssl", "sentinel_username", "sentinel_password"),
        *TLS_PARAMETERS,
    },
}
_VERIFY = {
    **dict.fromkeys(("required", "cert_required", "optional", "cert_optional"), "required"),  # one for a client
    **dict.fromkeys(("none", "cert_none"), "none"),
}
_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no")
_ENCODE = "in a user or password, write / as %2F, @ as %40, : as %3A, ; as %3B, # as %23, ? as %3F, % as %25"


@dataclass(frozen=True, slots=True)
class RedisAddress:
    scheme: str
    places: tuple[tuple[str, int], ...]
    """Host and port: of the server, or of each Sentinel; empty for a socket."""
    path: str
    """The socket's; empty otherwise."""
    db: int
    username: str | None = field(repr=False)
    password: str | None = field(repr=False)
    master: str
    """The name by which the Sentinels know the primary."""
    sentinel_login: Mapping[str, str] = field(repr=False)
    """``username`` and ``password`` at the Sentinels themselves, where set."""
    tls: Mapping[str, Any] | None
    """redis-py's ``ssl_*`` options; None = not encrypted."""

    @property
    def hosts(self) -> list[str]:
        """``host:port`` of each place, as in a URL: an IPv6 address in brackets."""
        return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.places]

    @property
    def login(self) -> str:
        """``user:password@`` percent-encoded, or nothing."""
        if self.username is None and self.password is None:
            return ""
        password = "" if self.password is None else f":{_quoted(self.password)}"
        return f"{_quoted(self.username or '')}{password}@"

    @property
    def shown(self) -> str:
        """The URL without user, password and TLS parameters, for messages."""
        if self.scheme == "unix":
            return f"unix://{quote(self.path)}" + (f"?db={self.db}" if self.db else "")
        master = f"?master={_quoted(self.master)}" if self.scheme == "sentinel" else ""
        return f"{self.scheme}://{';'.join(self.hosts)}/{self.db}{master}"


def parse_redis_url(url: str) -> RedisAddress:
    """Raises SettingError with the reason, and with no part of the URL that may be secret."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES:
        *others, last = (f"{name}://" for name in SCHEMES)
        raise _wrong(f"must begin with {', '.join(others)} or {last}")
    raws = rest.split(";") if scheme == "sentinel" else [rest]
    places = [_split(raw.removeprefix("sentinel://")) for raw in raws]
    query = _query(scheme, [place.query for place in places])
    tls = _tls(scheme, query)
    logins = {(place.username, place.password) for place in places if place.username or place.password}
    if len(logins) > 1:
        raise _wrong("names several users or passwords; one serves for all of its Sentinels")
    if any(place.username and not place.password for place in places[1:]) and not places[0].username:
        raise _wrong(f"has a character that must be percent-encoded: {_ENCODE}")  # a password with a ;
    user, password = logins.pop() if logins else (None, None)
    if scheme == "unix" and places[0].hostname:
        raise _wrong("a socket's path begins with /, as in unix:///run/valkey.sock")
    if scheme == "unix" and places[0].path in ("", "/"):
        raise _wrong("names no socket, as unix:///run/valkey.sock does")
    return RedisAddress(
        scheme=scheme,
        places=() if scheme == "unix" else tuple(_place(place, _PORTS[scheme]) for place in places),
        path=unquote(places[0].path) if scheme == "unix" else "",
        db=_db([query["db"]] if "db" in query else [] if scheme == "unix" else [place.path for place in places]),
        username=query.get("username") or (unquote(user) if user else None),
        password=query.get("password") or (unquote(password) if password else None),
        master=query.get("master", "mymaster"),
        sentinel_login={
            name: query[f"sentinel_{name}"] for name in ("username", "password") if f"sentinel_{name}" in query
        },
        tls=tls,
    )


def with_tls_files(url: str, *, ca: Any = None, cert: Any = None, key: Any = None) -> str:
    """The URL with the files that the settings name, unless it is not encrypted. The URL's own parameters beat them."""
    tls = parse_redis_url(url).tls
    if tls is None:
        return url
    files = {"ssl_ca_certs": ca, "ssl_certfile": cert, "ssl_keyfile": key}
    more = {name: str(path) for name, path in files.items() if path is not None and name not in tls}
    if not more:
        return url
    url = f"{url}{'&' if '?' in url else '?'}{urlencode(more)}"
    parse_redis_url(url)
    return url


def _split(raw: str) -> SplitResult:
    try:
        parts = urlsplit(f"//{raw}")
        _ = parts.port
    except ValueError:
        raise _wrong(f"has no valid host and port; {_ENCODE}") from None
    if parts.fragment or "@" in parts.path:
        raise _wrong(f"has a character that must be percent-encoded: {_ENCODE}")
    return parts


def _place(parts: SplitResult, port: int) -> tuple[str, int]:
    if parts.port == 0 or "," in (parts.hostname or ""):
        raise _wrong("names no valid host and port; Sentinels are separated by `;`")
    return unquote(parts.hostname or "127.0.0.1"), parts.port or port


def _db(stated: list[str]) -> int:
    numbers = {one.strip("/") for one in stated} - {""}
    if len(numbers) > 1 or not all(number.isdecimal() for number in numbers):
        raise _wrong("the database must be one number, as in redis://host:6379/0")
    return int(numbers.pop()) if numbers else 0


def _query(scheme: str, queries: list[str]) -> dict[str, str]:
    found = {name: value for query in queries for name, value in parse_qsl(query, keep_blank_values=True)}
    unknown = sorted(found.keys() - _PARAMETERS[scheme])
    if unknown and any("@" in query for query in queries):  # a part of a password
        raise _wrong(f"has a character that must be percent-encoded: {_ENCODE}")
    if unknown:
        known = ", ".join(sorted(_PARAMETERS[scheme]))
        raise _wrong(f"{unknown[0]!r} is no parameter of a {scheme}:// URL; known are {known}")
    return found


def _tls(scheme: str, query: Mapping[str, str]) -> Mapping[str, Any] | None:
    given = {name: query[name] for name in TLS_PARAMETERS if name in query}
    if scheme != "rediss" and not _flag("ssl", query.get("ssl", "false")):
        if given:
            raise _wrong(f"{next(iter(given))} needs ssl=true: without it, nothing is encrypted")
        return None
    verify = given.get("ssl_cert_reqs", "required")
    if verify.lower() not in _VERIFY:
        raise _wrong(f"ssl_cert_reqs={verify[:20]}: must be required or none")
    options: dict[str, Any] = {**given, "ssl_cert_reqs": _VERIFY[verify.lower()]}
    if "ssl_check_hostname" in given:
        options["ssl_check_hostname"] = _flag("ssl_check_hostname", given["ssl_check_hostname"])
    if "ssl_keyfile" in given and "ssl_certfile" not in given:
        raise _wrong("a client key needs its certificate: set BRIMFUL_REDIS_CERT_FILE (ssl_certfile)")
    _read_files(options)
    return options


def _read_files(options: Mapping[str, Any]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if (ca := options.get("ssl_ca_certs")) is not None:
        try:
            context.load_verify_locations(cafile=ca)
        except (OSError, ssl.SSLError) as error:
            raise _wrong(f"cannot read certificates from {ca} (ssl_ca_certs, BRIMFUL_REDIS_CA_FILE): {error}") from None
    if (cert := options.get("ssl_certfile")) is not None:
        try:
            # Without a password: it would be asked for on the terminal.
            context.load_cert_chain(cert, options.get("ssl_keyfile"), password="")
        except (OSError, ssl.SSLError) as error:
            raise _wrong(
                f"cannot use the client certificate {cert} (ssl_certfile, BRIMFUL_REDIS_CERT_FILE) with its key "
                f"(ssl_keyfile, BRIMFUL_REDIS_KEY_FILE; without password): {error}"
            ) from None


def _flag(name: str, value: str) -> bool:
    if value.lower() not in _TRUE + _FALSE:
        raise _wrong(f"{name}={value[:20]}: must be true or false")
    return value.lower() in _TRUE


def _quoted(text: str) -> str:
    return quote(text, safe="")


def _wrong(why: str) -> SettingError:
    return SettingError(f"BRIMFUL_REDIS_URL: {why}")
