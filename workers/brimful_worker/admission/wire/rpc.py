"""Sends one command, ``exchange.lua``, until it is answered.

Failure mode: while Redis is away the same command is sent again and again, unchanged and under the same number. Redis
recognises a number that it has carried out, and only answers again.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, ResponseError

from brimful.errors import FleetError, RedisRefused, RedisUnreachable
from brimful.limits import too_far
from brimful.runtime.json_bytes import decode, encode
from brimful.state.keys import admission_keys, everyone_channel, process_channel
from brimful_worker.admission.errors import EvictingRedis, ScriptFailed, TooFar
from brimful_worker.admission.wire.connection import Backoff, Connection, ConnectionDown
from brimful_worker.admission.wire.eviction import EvictionWatch
from brimful_worker.admission.wire.redis_clock import RedisClock
from brimful_worker.admission.wire.round_trips import RoundTrips
from brimful_worker.admission.wire.subscriber import Subscriber
from brimful_worker.liveness.boot_time import boot_time
from brimful_worker.lua_script import Script

log = logging.getLogger(__name__)

SCHEMA = 1
"""Version of the admission's keys, messages and script. Processes of different versions never share a Redis: raise it
with every change that an older script would misread. Workers that send no version count as version 1."""
_LATE_MOST = 3
"""Commands in a row that came late: from then on the network is taken as slower than it was, not as stalling."""
_PINGS = 5
_THAW_S = 0.03
"""Pause before a command that was answered "frozen" is sent again; well below the script's LEAP_MS."""
_FOLDER = resources.files("brimful_worker.admission").joinpath("lua")
_INCLUDE = re.compile(r"^--#include (\S+)$", re.MULTILINE)


def with_parts(text: str) -> str:
    """``exchange.lua`` with its parts in it."""
    return _INCLUDE.sub(lambda part: _FOLDER.joinpath(part[1]).read_text("utf-8"), text)


@lru_cache
def exchange() -> Script:
    return Script.of(with_parts(_FOLDER.joinpath("exchange.lua").read_text("utf-8")))


def exchange_arguments(tag: str, message: bytes) -> list[Any]:
    """Number of keys, keys and arguments: what follows EVALSHA and the hash, or EVAL and the text."""
    names = admission_keys(tag).values()
    return [len(names), *names, message, process_channel(tag, ""), everyone_channel(tag)]


@dataclass(frozen=True, slots=True)
class Answer:
    """Times are on ``boot_time()``."""

    first_sent: float
    """First sending: the command was carried out at that time or later."""
    sent: float
    """The sending that was answered."""
    received: float
    reply: dict[str, Any]


class Rpc:
    """Subscribes before it sends: processes that Redis cannot push to would wait for nothing."""

    def __init__(self, url: str | Redis, tag: str, process: str, subscriber: Subscriber, clock: RedisClock) -> None:
        self.commands = 0
        """Number of commands sent, repetitions included."""
        self.failure: FleetError | None = None
        """Why the last command has no answer: RedisUnreachable, RedisRefused or ScriptFailed."""
        self._logged: type[FleetError] | None = None
        self._backoff = Backoff()
        self._tag = tag
        self._connection = Connection(url, f"brimful-{process}")
        self._server = ""
        self._answered = False
        self.eviction = EvictionWatch()
        self.round_trips = RoundTrips()
        self._subscriber = subscriber
        self._clock = clock

    async def call(self, message: dict[str, Any], seen: Callable[[], int]) -> Answer:
        """Send until answered. ``seen`` gives the number of the last grant taken, at each sending.

        Raises EvictingRedis if no command was answered yet and the server may evict keys.
        """
        first_sent, late, stepped, slower = boot_time(), 0, False, False
        while True:
            try:
                if not self._connection.connected:
                    await self._connect()
                elif self.eviction.due:
                    await self.eviction.look(self._connection.call)
                if self.eviction.fault and not self._answered:
                    raise EvictingRedis(self.eviction.fault)
                circumstances = self._circumstances(stepped=stepped, slower=slower) | {"seen": seen()}
                answer = await self._send(first_sent, message | circumstances)
            except (ConnectionDown, ResponseError) as error:
                self._failed(_failure(error))
                await self._connection.close()
                await self._backoff.sleep()
                continue
            if answer.reply["status"] == "late":
                late += 1
                stepped = self._clock.stepped(answer.received, answer.reply["now"])
                slower = late >= _LATE_MOST
                continue
            self._answered = True
            if answer.reply["status"] == "frozen":
                self._clock.note_frozen(answer.sent, answer.received, answer.reply)
                await asyncio.sleep(_THAW_S)
                continue
            if "clock" in answer.reply:
                self._clock.reset()
                self._clock.id = answer.reply["clock"]
            if answer.reply["status"] == "ok":
                self._succeeded()
            return answer

    def set_timeout(self, seconds: float, *, first: bool = False) -> None:
        """How long each reply is waited for. ``first``: before it is known which lease is in force."""
        self._connection.reply_timeout_s = max(seconds, self._connection.reply_timeout_s) if first else seconds

    async def check_distance(self, answer: Answer, lease_s: float) -> None:
        """Raises TooFar if Redis is too far away for leases of this length. A slow first answer alone is no proof."""
        trip = answer.received - answer.sent
        for _ in range(_PINGS):
            if too_far(trip, lease_s) is None:
                return
            sent = boot_time()
            try:
                await self._connection.call("PING")
            except (ConnectionDown, ResponseError) as error:
                log.debug("admission: no answer to a PING: %s", error)
                return  # the next command shows it
            trip = min(trip, boot_time() - sent)
        if fault := too_far(trip, lease_s):
            raise TooFar(fault)

    async def close(self) -> None:
        await self._connection.dispose()

    async def _connect(self) -> None:
        await self._subscriber.wait_subscribed()
        await self._connection.connect()
        answer: bytes = await self._connection.call("INFO", "server")
        fields = dict(line.split(b":", 1) for line in answer.splitlines() if b":" in line)
        self._server = fields.get(b"run_id", b"").decode()
        await self.eviction.look(self._connection.call)

    def _failed(self, failure: FleetError) -> None:
        """Log a failure once; a connection that breaks once is not worth it."""
        repeated, self.failure = self.failure is not None, failure
        if type(failure) is self._logged or (isinstance(failure, RedisUnreachable) and not repeated):
            return
        self._logged = type(failure)
        level = logging.ERROR if isinstance(failure, ScriptFailed) else logging.WARNING
        log.log(level, "admission: %s. Nothing is started until this ends; retrying", failure)

    def _succeeded(self) -> None:
        if self._logged is not None:
            log.warning("admission: Redis answers again")
        self.failure = self._logged = None
        self._backoff.reset()

    def _circumstances(self, *, stepped: bool, slower: bool) -> dict[str, Any]:
        """Fields that may differ between two sendings of one command.

        ``stepped``: the clock was stepped forward. ``slower``: commands take longer than the clock's bound allows.
        """
        sent = boot_time()
        fields: dict[str, Any] = {
            "server": self._server,
            "new_epoch": secrets.token_hex(8),
            "clock": self._clock.id,
            "read": self._clock.read_ms,
        }
        if (bound := self._clock.bound_ms(sent, stepped=stepped)) is not None:
            fields["bound_ms"] = bound
        if (least := self._clock.least_ms(sent)) is not None:
            fields["least_ms"] = least
        if stepped or slower:
            fields["stepped"] = True
        if (waited := self._clock.waited(sent)) is not None:
            fields["waited"] = waited
        return fields

    async def _send(self, first_sent: float, message: dict[str, Any]) -> Answer:
        script, arguments = exchange(), exchange_arguments(self._tag, encode(message))
        sent = boot_time()
        self.commands += 1
        try:
            raw = await self._connection.call("EVALSHA", script.sha, *arguments)
        except NoScriptError:  # SCRIPT FLUSH, a restart or a failover
            sent = boot_time()
            self.commands += 1
            raw = await self._connection.call("EVAL", script.text, *arguments)
        return Answer(first_sent, sent, boot_time(), decode(raw))


def other_schema(ours: int, theirs: int) -> str:
    """Why a process cannot join a fleet that uses another version."""
    return (
        f"this process uses version {ours} of the admission's schema, and the workers of this key on its "
        f"Redis use version {theirs}: stop those first, or run the same version of brimful here"
    )


def _failure(error: ConnectionDown | ResponseError) -> FleetError:
    text = str(error)
    if isinstance(error, ConnectionDown):
        hint = " (a quarter of the lease: if Redis is far away, set BRIMFUL_LEASE_S)" if error.timed_out else ""
        return RedisUnreachable(f"Redis cannot be reached: {text}{hint}")
    if text.startswith("SCRIPTERROR ") or "user_script" in text:
        return ScriptFailed(
            f"the admission's script fails in Redis: {text.removeprefix('SCRIPTERROR ')} "
            "(were its keys changed by hand, or by workers of another version?)"
        )
    return RedisRefused(f"Redis refuses the admission's command: {type(error).__name__}: {text}")
