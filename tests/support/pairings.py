"""One server behind each kind of Redis URL that the docs promise, with an awkward password."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import redis

from brimful_worker.local.server.valkey import Valkey
from support.sentinel import sentinel
from support.tls import certificate_in, client_certificate_in, tls_in_front_of

PAIRINGS = ("tcp", "password", "acl", "tls", "client_certificate", "unix", "sentinel")
"""From ``acl`` on, with a user of few rights."""
PASSWORD, QUOTED = "p/w@1:#?%", "p%2Fw%401%3A%23%3F%25"
RIGHTS = "~* &* -@all +@read +@write +@connection +@transaction +@scripting +@pubsub +info +time +dbsize"
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


def refused_commands(valkey: Valkey) -> list[str]:
    """What the user was refused."""
    with redis.Redis(port=valkey.port, password=valkey.password, decode_responses=True) as client:
        return [entry["object"] for entry in client.acl_log()]
