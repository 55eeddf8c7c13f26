"""One server behind each kind of Redis URL that the docs promise, with a user of few rights and an awkward password."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import redis

from brimful_worker.local.server.valkey import Valkey
from support.sentinel import sentinel
from support.tls import certificate_in, tls_in_front_of

PAIRINGS = ("acl", "tls", "unix", "sentinel")
PASSWORD, QUOTED = "p/w@1:#?%", "p%2Fw%401%3A%23%3F%25"
RIGHTS = "~* &* -@all +@read +@write +@connection +@transaction +@scripting +@pubsub +info +time +dbsize"
"""As docs/redis.md has them."""


@contextlib.contextmanager
def reached_by(pairing: str, directory: Path) -> Iterator[tuple[dict[str, str], Valkey]]:
    """The environment of one who reaches the server as the user ``fleet`` in the database 5, and the server."""
    socket = directory / "valkey.sock"
    options = (f"unixsocket {socket}", f'user fleet on ">{PASSWORD}" {RIGHTS}')
    with contextlib.ExitStack() as stack:
        valkey = stack.enter_context(Valkey(directory / "valkey", appendonly=True, options=options))
        login = f"fleet:{QUOTED}@"
        env = {"BRIMFUL_REDIS_URL": f"redis://{login}127.0.0.1:{valkey.port}?db=5"}
        if pairing == "tls":
            certificate, context = certificate_in(directory)
            port = stack.enter_context(tls_in_front_of(valkey.port, context))
            env = {
                "BRIMFUL_REDIS_URL": f"rediss://{login}127.0.0.1:{port}/5",
                "BRIMFUL_REDIS_CA_FILE": str(certificate),
            }
        elif pairing == "unix":
            env = {"BRIMFUL_REDIS_URL": f"unix://{socket}?db=5&username=fleet&password={QUOTED}"}
        elif pairing == "sentinel":
            port = stack.enter_context(sentinel(directory, valkey.port))
            env = {"BRIMFUL_REDIS_URL": f"sentinel://{login}127.0.0.1:{port}/5?master=mymaster"}
        yield env, valkey


def refused_commands(valkey: Valkey) -> list[str]:
    """What the user was refused."""
    with redis.Redis(port=valkey.port, decode_responses=True) as client:
        return [entry["object"] for entry in client.acl_log()]
