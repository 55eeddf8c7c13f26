"""The Valkey of a storm over the limits, and what each fault does to it.

Methods wait for their commands: call them on a thread.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from brimful.state.keys import ADMISSION
from brimful.state.status import set_limits
from brimful_worker.local.server.valkey import Valkey
from support.admission_peers import STEP_DB, STEP_KEY
from support.admissions import KEYS, TAG
from support.limits_storm.audit import Limits
from support.storm.schedule import Event
from support.waiting import wait_until

STEPS_S = (0.3, 0.6, 1.0, 1.9, 2.9, 4.0, 7.0, 30.0)
_IN_SYNC_S = 10.0


class Server:
    """Two servers, of which one is in use: the other becomes its replica and takes its place."""

    def __init__(self, directory: Path, *, appendonly: bool) -> None:
        options = ("repl-diskless-sync-delay 0",)
        self._valkeys = [Valkey(directory / name, appendonly=appendonly, options=options) for name in ("one", "two")]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        with self._valkeys[0], self._valkeys[1]:
            yield

    @property
    def port(self) -> int:
        return self._valkeys[0].port

    def client(self, which: int = 0, db: int = 0) -> redis.Redis:
        return redis.Redis(
            port=self._valkeys[which].port,
            db=db,
            decode_responses=True,
            socket_timeout=8,
            retry=Retry(NoBackoff(), 0),
        )

    def apply(self, event: Event) -> bool:
        """From the fault's begin to its end. True if :attr:`port` is another one now."""
        dice = random.Random(event.number)
        valkey = self._valkeys[0]
        match event.kind:
            case "kill redis":
                valkey.kill()
                time.sleep(event.lasts)
                valkey.start()
            case "stop redis":
                os.kill(valkey.pid, signal.SIGSTOP)
                time.sleep(event.lasts)
                os.kill(valkey.pid, signal.SIGCONT)
            case "stale replica":
                return self._promote_stale(event.lasts)
            case _:
                with self.client() as client:
                    self._command(client, event, dice)
        return False

    @staticmethod
    def _command(client: redis.Redis, event: Event, dice: random.Random) -> None:
        match event.kind:
            case "flush":
                client.flushdb()
            case "lose keys":
                for name in dice.sample(ADMISSION, dice.choice((1, 1, 2, 3))):
                    lose(client, name, half=dice.random() < 0.3)
            case "pause redis":
                client.execute_command("CLIENT", "PAUSE", round(event.lasts * 1000))
            case "cut connections":
                client.execute_command("CLIENT", "KILL", "TYPE", dice.choice(("normal", "pubsub")), "SKIPME", "yes")
            case "forget scripts":
                client.script_flush()
            case _:
                raise AssertionError(event.kind)

    def _promote_stale(self, behind_s: float) -> bool:
        with self.client() as old, self.client(1) as replica:
            replica.replicaof("127.0.0.1", str(self._valkeys[0].port))
            try:
                wait_until(lambda: _in_sync(replica), "the replica is in sync", _IN_SYNC_S)
            except AssertionError:
                return False  # the machine is too busy
            finally:
                replica.replicaof("NO", "ONE")
            time.sleep(behind_s)
            old.execute_command("CLIENT", "PAUSE", 3000)  # until all have been led away
            self._valkeys.reverse()
            return True

    def step_clock(self, event: Event) -> None:
        """Redis's TIME, as the processes' scripts read it. A restart without a file undoes all steps."""
        dice = random.Random(event.number)
        with self.client(db=STEP_DB) as client:
            client.incrby(STEP_KEY, round(dice.choice(STEPS_S) * dice.choice((1, -1)) * 1000))

    def set_limits(self, limits: Limits, lease_s: float) -> None:
        with self.client() as client:
            set_limits(client, TAG, slots=limits.slots, starts=limits.starts, lease_s=lease_s)


def lose(client: redis.Redis, name: str, *, half: bool) -> None:
    """Delete a key of the admission, or half of what is in it."""
    key = KEYS[name]
    kind: Any = client.type(key)
    if not half or kind == "none":
        client.delete(key)
    elif kind == "zset":
        client.zremrangebyrank(key, 0, (client.zcard(key) - 1) // 2)
    else:
        fields: Any = client.hkeys(key)
        if fields:  # it may have gone meanwhile
            client.hdel(key, *sorted(fields)[::2])


def _in_sync(replica: redis.Redis) -> bool:
    about: Any = replica.info("replication")
    return bool(about.get("master_link_status") == "up")
