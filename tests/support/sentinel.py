"""A real Sentinel process."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import redis

from brimful_worker.local.server import valkey
from brimful_worker.local.server.valkey import free_port
from support.waiting import wait_until


@contextlib.contextmanager
def sentinel(directory: Path, port: int, *, tls: Sequence[str] = (), **client_options: Any) -> Iterator[int]:
    """Watches the server on ``port`` as ``mymaster``; yields the Sentinel's own port.

    ``tls``: lines of its configuration, with which it speaks TLS only; ``client_options`` are redis-py's to reach it.
    """
    own = free_port()
    config = directory / "sentinel.conf"
    lines = (
        *((f"tls-port {own}", "port 0", *tls) if tls else (f"port {own}",)),
        *("bind 127.0.0.1", f"dir {directory}", f"sentinel monitor mymaster 127.0.0.1 {port} 1"),
        *("sentinel down-after-milliseconds mymaster 500", "sentinel failover-timeout mymaster 2000"),
    )
    config.write_text("\n".join(lines) + "\n")
    process = subprocess.Popen([str(valkey.binary()), str(config), "--sentinel"], stdout=subprocess.DEVNULL)
    try:
        with redis.Redis("127.0.0.1", own, **client_options) as client:
            wait_until(lambda: _knows_the_master(client), "Sentinel knows the master")
        yield own
    finally:
        process.terminate()
        process.wait()


def _knows_the_master(client: redis.Redis) -> bool:
    try:
        return bool(client.sentinel_get_master_addr_by_name("mymaster"))
    except redis.RedisError:
        return False
