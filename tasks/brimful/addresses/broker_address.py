"""A RabbitMQ URL, parsed. The only code that knows the form of ``BRIMFUL_BROKER_URL``.

==========================================================  ==================================================
``amqp://[USER[:PASSWORD]@]HOST[:5672][/VHOST]``            a server
``amqps://…[:5671]``                                        the same over TLS
``amqp://…;amqp://…``                                       the nodes of a cluster, tried in turn
==========================================================  ==================================================

User, password and virtual host are percent-encoded; the virtual host is ``/`` if none is named. TLS parameters are
:data:`TLS_PARAMETERS`. :data:`~brimful.names.NO_BROKER` stands for no RabbitMQ.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from brimful.errors import SettingError
from brimful.names import NO_BROKER

PORTS = {"amqp": 5672, "amqps": 5671}
TLS_PARAMETERS = {"ssl_ca_certs": "ca_certs", "ssl_certfile": "certfile", "ssl_keyfile": "keyfile"}
"""Query parameters → py-amqp's names. They are files; the server's certificate and its name are always verified."""
_ENCODE = "in a user, password or virtual host, write / as %2F, @ as %40, : as %3A, # as %23, ? as %3F, % as %25"


@dataclass(frozen=True, slots=True)
class BrokerNode:
    """A server and the virtual host on it."""

    scheme: str
    host: str
    port: int
    vhost: str
    username: str = field(repr=False)
    password: str = field(repr=False)

    @property
    def shown(self) -> str:
        """The URL without user, password and TLS parameters, for messages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}/{quote(self.vhost, safe='')}"

    @property
    def url(self) -> str:
        """The URL as kombu takes it."""
        scheme, _, rest = self.shown.partition("://")
        return f"{scheme}://{quote(self.username, safe='')}:{quote(self.password, safe='')}@{rest}"


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    nodes: tuple[BrokerNode, ...]
    tls: dict[str, Any] | None
    """py-amqp's ``ssl`` options; None = not encrypted."""

    @property
    def shown(self) -> str:
        """The nodes without users and passwords, for messages."""
        return ";".join(node.shown for node in self.nodes)

    @property
    def url(self) -> str:
        """All nodes as kombu takes them."""
        return ";".join(node.url for node in self.nodes)


def parse_broker_url(url: str) -> BrokerAddress:
    """Raises SettingError with the reason, and with no part of the URL that may be secret."""
    nodes, queries = [], []
    for each in url.split(";"):
        scheme, separator, rest = each.strip().partition("://")
        if not separator or scheme not in PORTS:
            raise _wrong("must begin with amqp:// or amqps://; a Redis is named by BRIMFUL_REDIS_URL alone")
        node, query = _node(scheme, rest)
        nodes.append(node)
        queries.append(query)
    if len(nodes) > 1 and any(node.scheme == "amqps" for node in nodes):
        # kombu verifies each node's certificate against the name of the first.
        raise _wrong("names several nodes with TLS; use one host name for all of them, such as a load balancer's")
    return BrokerAddress(tuple(nodes), _tls(nodes[0].scheme, queries[0]))


def checked_broker_url(url: str | None, *, alone: bool) -> str | None:
    """The setting, for pydantic: None for :data:`NO_BROKER`. Raises ValueError. ``alone``: no Redis is set besides."""
    if url == NO_BROKER:
        return None
    if url is not None:
        try:
            parse_broker_url(url)
        except SettingError as error:
            raise ValueError(str(error).removeprefix("BRIMFUL_BROKER_URL: ")) from None
        if alone:
            raise ValueError("BRIMFUL_REDIS_URL must be set too: limits, results and runs need a Redis beside RabbitMQ")
    return url


def _node(scheme: str, rest: str) -> tuple[BrokerNode, dict[str, str]]:
    try:
        parts = urlsplit(f"//{rest}")
        port = parts.port or PORTS[scheme]
    except ValueError:
        raise _wrong(f"has no valid host and port; {_ENCODE}") from None
    vhost = parts.path.removeprefix("/")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(query.keys() - TLS_PARAMETERS.keys())
    misread = unknown and "@" in parts.query  # a part of a password
    if parts.fragment or misread or "@" in vhost or "/" in vhost.removeprefix("/"):
        raise _wrong(f"has a character that must be percent-encoded: {_ENCODE}")
    if not parts.hostname:
        raise _wrong("names no host, as amqp://USER:PASSWORD@HOST:5672/VHOST does")
    if unknown:
        raise _wrong(f"{unknown[0]!r} is no parameter of an amqp URL; known are {', '.join(TLS_PARAMETERS)}")
    node = BrokerNode(
        scheme,
        unquote(parts.hostname),
        port,
        unquote(vhost) or "/",
        unquote(parts.username or "guest"),
        unquote(parts.password or "guest"),
    )
    return node, query


def _tls(scheme: str, query: dict[str, str]) -> dict[str, Any] | None:
    if scheme != "amqps":
        if query:
            raise _wrong(f"{next(iter(query))} needs amqps://: without it, nothing is encrypted")
        return None
    files = {TLS_PARAMETERS[name]: path for name, path in query.items()}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if "ca_certs" in files:
            context.load_verify_locations(cafile=files["ca_certs"])
        if "certfile" in files:
            context.load_cert_chain(files["certfile"], files.get("keyfile"), password="")  # else a terminal is asked
    except (OSError, ssl.SSLError) as error:
        raise _wrong(f"cannot use its certificates ({', '.join(sorted(query))}): {error}") from None
    # The name None: kombu puts the host's in, and py-amqp verifies the certificate against it.
    return {**files, "cert_reqs": ssl.CERT_REQUIRED, "server_hostname": None}


def _wrong(why: str) -> SettingError:
    return SettingError(f"BRIMFUL_BROKER_URL: {why}")
