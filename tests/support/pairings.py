"""One server behind each kind of Redis URL that the docs promise, with an awkward password."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import redis

from brimful_worker.local.server import valkey as valkey_module
from brimful_worker.local.server.valkey import Valkey, free_port
from support.sentinel import sentinel
from support.tls import certificate_in, client_certificate_in, tls_in_front_of

PAIRINGS = ("tcp", "password", "acl", "tls", "client_certificate", "unix", "sentinel")
"""From ``acl`` on, with a user of few rights."""
REDIS = shutil.which("redis-server")
"""Debian's, which can do TLS."""
PASSWORD, QUOTED = "p/w@1:#?%", "p%2Fw%401%3A%23%3F%25"
RIGHTS = "~* &* -@all +@read +@write +@connection +@transaction +@scripting +@pubsub -@dangerous +info +time"
"""As docs/redis.md has them."""


@contextlib.contextmanager
def reached_by(pairing: str, directory: Path) -> Iterator[tuple[dict[str, str], Valkey]]:
    """The environment of one who reaches the database 5 of a server, and the server."""
    socket = directory / "valkey.sock"
    password = PASSWORD if pairing == "password" else None
    options = (f"unixsocket {socket}", f'user fleet on ">{PASSWORD}" {RIGHTS}')
    with contextlib.ExitStack() as stack:
        server = Valkey(directory / "valkey", password=password, appendonly=True, options=options)
        valkey = stack.enter_context(server)
        place, login = f"127.0.0.1:{valkey.port}", f"fleet:{QUOTED}@"
        match pairing:
            case "tcp":
                env = {"BRIMFUL_REDIS_URL": f"redis://{place}/5"}
            case "password":
                env = {"BRIMFUL_REDIS_URL": f"redis://:{QUOTED}@{place}/5"}
            case "acl":
                env = {"BRIMFUL_REDIS_URL": f"redis://{login}{place}?db=5"}
            case "tls" | "client_certificate":
                certificate, context = certificate_in(directory)
                env = {"BRIMFUL_REDIS_CA_FILE": str(certificate)}
                if pairing == "client_certificate":
                    certificate, key = client_certificate_in(directory, context)
                    env |= {"BRIMFUL_REDIS_CERT_FILE": str(certificate), "BRIMFUL_REDIS_KEY_FILE": str(key)}
                port = stack.enter_context(tls_in_front_of(valkey.port, context))
                env["BRIMFUL_REDIS_URL"] = f"rediss://{login}127.0.0.1:{port}/5"
            case "unix":
                env = {"BRIMFUL_REDIS_URL": f"unix://{socket}?db=5&username=fleet&password={QUOTED}"}
            case "sentinel":
                port = stack.enter_context(sentinel(directory, valkey.port))
                env = {"BRIMFUL_REDIS_URL": f"sentinel://{login}127.0.0.1:{port}/5?master=mymaster"}
            case _:
                raise ValueError(pairing)
        yield env, valkey


@contextlib.contextmanager
def reached_by_tls_sentinels(directory: Path) -> Iterator[tuple[dict[str, str], Valkey]]:
    """As :func:`reached_by`, with Debian's Redis: server and Sentinel speak TLS, and ask for a client certificate."""
    certificate, context = certificate_in(directory)
    own, own_key = client_certificate_in(directory, context)
    authorities, port = directory / "authorities.pem", free_port()
    authorities.write_bytes(certificate.read_bytes() + own.read_bytes())
    tls = (
        f"tls-cert-file {certificate}",
        f"tls-key-file {directory / 'key.pem'}",
        f"tls-ca-cert-file {authorities}",
        *("tls-auth-clients yes", "tls-replication yes"),
    )
    options = (*tls, f"tls-port {port}", f'user fleet on ">{PASSWORD}" {RIGHTS}')
    files = {"ssl_ca_certs": certificate, "ssl_certfile": own, "ssl_keyfile": own_key}
    with (
        mock.patch.object(valkey_module, "binary", return_value=REDIS),
        Valkey(directory / "redis", appendonly=True, options=options) as server,
        sentinel(directory, port, tls=tls, ssl=True, **{name: str(path) for name, path in files.items()}) as watcher,
    ):
        yield (
            {
                "BRIMFUL_REDIS_URL": f"sentinel://fleet:{QUOTED}@127.0.0.1:{watcher}/5?master=mymaster&ssl=true",
                "BRIMFUL_REDIS_CA_FILE": str(certificate),
                "BRIMFUL_REDIS_CERT_FILE": str(own),
                "BRIMFUL_REDIS_KEY_FILE": str(own_key),
            },
            server,
        )


def refused_commands(valkey: Valkey) -> list[str]:
    """What the user was refused."""
    with redis.Redis(port=valkey.port, password=valkey.password, decode_responses=True) as client:
        return [entry["object"] for entry in client.acl_log()]
