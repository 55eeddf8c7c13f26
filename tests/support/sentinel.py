"""A real Sentinel process."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import redis

from brimful_worker.local.server.valkey import binary, free_port
from support.waiting import wait_until


@contextlib.contextmanager
def sentinel(directory: Path, port: int) -> Iterator[int]:
    """Watches the server on ``port`` as ``mymaster``; yields the Sentinel's own port."""
    own = free_port()
    config = directory / "sentinel.conf"
    config.write_text(
        f"port {own}\nbind 127.0.0.1\ndir {directory}\nsentinel monitor mymaster 127.0.0.1 {port} 1\n"
        "sentinel down-after-milliseconds mymaster 500\nsentinel failover-timeout mymaster 2000\n"
    )
    process = subprocess.Popen([str(binary()), str(config), "--sentinel"], stdout=subprocess.DEVNULL)
    try:
        with redis.Redis(port=own) as client:
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
