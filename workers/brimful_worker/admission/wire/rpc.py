"""One command and its answer, however often it must be said.

Failure mode: while Redis is away the same command, word for word and under the same number, is sent again and again;
Redis knows a number that it has carried out, and only answers anew.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
import redis.exceptions

from brimful_worker.admission.keys import Keys
from brimful_worker.admission.wire.connection import CommandLink, LinkDown
from brimful_worker.admission.wire.redis_clock import RedisClock
from brimful_worker.admission.wire.scripts import exchange_arguments, load
from brimful_worker.admission.wire.subscriber import Subscriber
from brimful_worker.liveness.boot_time import boot_time

log = logging.getLogger(__name__)

_RETRY_FIRST_S, _RETRY_MOST_S = 0.05, 1.0


@dataclass(frozen=True, slots=True)
class Answer:
    first_sent: float
    """Steady time of the first sending: the command was carried out at that time or later."""
    sent: float
    """Of the sending that was answered."""
    received: float
    reply: dict[str, Any]


class Rpc:
    """Listening comes before speaking: a process is counted among those that Redis can call."""

    def __init__(self, url: str, keys: Keys, process: str, listener: Subscriber, clock: RedisClock) -> None:
        self.commands = 0
        """Sent in all, repeated ones included."""
        self.refusal = ""
        """Why Redis cannot be reached, while it cannot."""
        self._keys = keys
        self._connection = CommandLink(url, f"brimful-{process}")
        self._subscriber = listener
        self._clock = clock

    async def say(self, message: dict[str, Any], seen: Callable[[], int]) -> Answer:
        """Until it is answered. ``seen`` tells the last grant taken, at each sending."""
        delay, told, first_sent = _RETRY_FIRST_S, False, boot_time()
        while True:
            try:
                if not self._connection.connected:
                    await self._subscriber.wait_listening()
                    await self._connection.connect()
                answer = await self._send(first_sent, {**message, **self._circumstances(), "seen": seen()})
            except (LinkDown, redis.exceptions.ResponseError) as error:
                if self.refusal and not told:  # a single broken connection is not worth a word
                    told = True
                    log.warning("admission: Redis does not answer, nothing is started until it does: %s", error)
                self.refusal = str(error)
                await self._connection.close()
                await asyncio.sleep(delay * (0.5 + random.random() / 2))
                delay = min(2 * delay, _RETRY_MOST_S)
                continue
            self.refusal = ""
            if told:
                log.warning("admission: Redis answers again")
            return answer

    def be_patient(self, seconds: float) -> None:
        """How long one answer is waited for from now on."""
        self._connection.call_s = seconds

    async def close(self) -> None:
        await self._connection.dispose()

    def _circumstances(self) -> dict[str, Any]:
        """What may differ between two sendings of one command."""
        told: dict[str, Any] = {
            "server": self._connection.server,
            "uptime_ms": int(self._connection.uptime_s * 1000),
            "new_epoch": secrets.token_hex(8),
        }
        if (bound := self._clock.bound_ms(boot_time())) is not None:
            told["bound_ms"] = bound
        return told

    async def _send(self, first_sent: float, message: dict[str, Any]) -> Answer:
        script, arguments = load("exchange"), exchange_arguments(self._keys, orjson.dumps(message))
        sent = boot_time()
        self.commands += 1
        try:
            raw = await self._connection.call("EVALSHA", script.sha, *arguments)
        except redis.exceptions.NoScriptError:
            sent = boot_time()
            self.commands += 1
            raw = await self._connection.call("EVAL", script.text, *arguments)
        return Answer(first_sent, sent, boot_time(), orjson.loads(raw))
