"""Ways in which a Redis that answers refuses writes, switched on and off through its own commands."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import redis

from support.waiting import wait_until

Refusal = Callable[[redis.Redis, bool], object]


def read_only(admin: redis.Redis, on: bool) -> Any:
    return admin.execute_command(*(("REPLICAOF", "127.0.0.1", "1") if on else ("REPLICAOF", "NO", "ONE")))


def no_replicas(admin: redis.Redis, on: bool) -> Any:
    return admin.config_set("min-replicas-to-write", "1" if on else "0")


def out_of_memory(admin: redis.Redis, on: bool) -> Any:
    return admin.config_set("maxmemory", "1" if on else "0")


def cannot_save(admin: redis.Redis, on: bool) -> Any:
    """Redis writes its snapshots into its directory. Needs ``enable-protected-configs yes`` and a decoding client."""
    directory = Path(str(admin.config_get("dir")["dir"]))
    in_the_way = directory / "dump.rdb" / "in the way"
    if not on:
        admin.config_set("save", "")
        return shutil.rmtree(directory / "dump.rdb", ignore_errors=True)
    admin.config_set("save", "3600 1")
    if not in_the_way.exists():
        (directory / "dump.rdb").unlink(missing_ok=True)
        (directory / "dump.rdb").mkdir()
        in_the_way.touch()
    admin.bgsave()
    return wait_until(lambda: admin.info("persistence")["rdb_last_bgsave_status"] == "err", "the save to fail")


def no_permission(admin: redis.Redis, on: bool) -> Any:
    return admin.execute_command("ACL", "SETUSER", "default", "-@write" if on else "+@all")


REFUSALS: Mapping[str, Refusal] = {
    "READONLY": read_only,
    "NOREPLICAS": no_replicas,
    "OOM": out_of_memory,
    "MISCONF": cannot_save,
    "NOPERM": no_permission,
}
