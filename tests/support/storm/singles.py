"""Single requests and malformed messages in a storm: who sent what, and what became of each."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import redis
from celery import Celery

from brimful import AsyncFleet, sample
from brimful.errors import RedisUnreachable, SampleError, SampleTimeout
from brimful.state.rabbitmq.reach import reached
from support.messages import AMQP_FORMS, FAILED_BY_CELERY, TAKEN_APART, WITH_ID, WITHOUT_ID, spoilt
from support.storm.machines import Machines
from support.storm.schedule import Event
from support.strict_gateway import POISON

QUEUES = ("interactive", "celery", "batch")
_END_STATES = ("SUCCESS", "FAILURE", "REVOKED")
_AWAITED_S = 240.0
"""For a result awaited by AsyncFleet: longer than a storm's calm."""


@dataclass(eq=False)
class Single:
    kind: str
    id: str
    sent_at: float
    """time.monotonic() before it was sent."""
    accepted: bool = False
    """Whether sending returned without an error: from then on it counts as asked for."""
    refused: str = ""
    """What sending raised."""
    state: str = ""
    """Its end; empty while it is pending."""
    cause: str = ""
    """Of a failure: the error's type, and brimful's cause."""


@dataclass
class Singles:
    machines: Machines
    redis_url: str
    sent: list[Single] = field(default_factory=list)
    malformed: Counter[str] = field(default_factory=Counter)
    """Malformed messages by id, or by digest if they have no id. Emptied when Redis is flushed."""
    tried: set[str] = field(default_factory=set)
    """The same, those included that Redis may not have taken."""

    def __post_init__(self) -> None:
        self._threads = ThreadPoolExecutor(16, thread_name_prefix="storm-singles")
        rabbitmq = self.machines.rabbitmq
        self._rabbitmq_url = rabbitmq.url if rabbitmq is not None else None
        broker = self._rabbitmq_url or self.redis_url
        self._stranger = Celery("stranger", broker=broker, backend=self.redis_url, set_as_current=False)
        if self._rabbitmq_url is not None:  # else what RabbitMQ had not written down when it was killed is lost
            self._stranger.conf.broker_transport_options = {"confirm_publish": True}
        self._results = redis.Redis.from_url(self.redis_url, socket_timeout=5)
        self._loop = asyncio.new_event_loop()
        self._over = threading.Event()
        self._awaiting = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._collecting = threading.Thread(target=self._collect, daemon=True)
        self._lock = threading.Lock()

    def __enter__(self) -> Singles:
        self._awaiting.start()
        self._fleet = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(60)
        self._collecting.start()
        return self

    async def _open(self) -> AsyncFleet:
        return AsyncFleet(self.redis_url)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._threads.shutdown(cancel_futures=True)
        asyncio.run_coroutine_threadsafe(self._fleet.aclose(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._awaiting.join()
        self._collecting.join()
        self._loop.close()
        self._stranger.close()
        self._results.close()

    # -- sending

    def send(self, event: Event) -> None:
        """Without waiting for it."""
        self._new(event.kind, random.Random(event.number))

    def poison(self) -> None:
        self._new("poison", random.Random(0))

    def _new(self, kind: str, dice: random.Random) -> None:
        single = Single(kind, uuid.uuid4().hex, time.monotonic())
        self.sent.append(single)
        if kind == "async":
            asyncio.run_coroutine_threadsafe(self._await(single), self._loop)
        else:
            self._threads.submit(self._send, single, dice)

    def _send(self, single: Single, dice: random.Random) -> None:
        prompt = f"{POISON if single.kind == 'poison' else 'single'} {single.id}"
        own: dict[str, Any] = {"args": (prompt,), "kwargs": {"max_tokens": 4}, "task_id": single.id}
        try:
            match single.kind:
                case "delay" | "poison":
                    sample.apply_async(**own)
                case "revoke":
                    handle = sample.apply_async(**own, countdown=dice.choice((0, 0, 3)))
                    single.accepted = True
                    time.sleep(dice.uniform(0, 1))
                    handle.revoke(terminate=dice.random() < 0.7)
                case "countdown":
                    sample.apply_async(**own, countdown=dice.uniform(2, 12), queue=dice.choice(QUEUES))
                case "eta":
                    sample.apply_async(**own, eta=datetime.now(UTC) + timedelta(seconds=dice.uniform(2, 12)))
                case "expires":
                    sample.apply_async(**own, expires=dice.choice((1, 60)))
                case "stranger":
                    self._stranger.send_task("brimful.sample", queue=dice.choice(QUEUES), **own)
            single.accepted = True
        except Exception as error:
            single.refused = type(error).__name__

    async def _await(self, single: Single) -> None:
        """Through AsyncFleet, as a service does: what is awaited ends."""
        try:
            handle = await self._fleet.submit(f"single {single.id}", max_tokens=4, task_id=single.id)
            single.accepted = True
            async with asyncio.timeout(_AWAITED_S):
                await self._fleet.result(handle)
            single.state = "SUCCESS"
        except RedisUnreachable as error:
            single.refused = type(error).__name__
        except SampleError as error:
            single.state, single.cause = "FAILURE", f"{type(error).__name__} {error.cause}"
        except TimeoutError:
            single.state, single.cause = "", SampleTimeout.__name__
        except Exception as error:
            single.state, single.cause = "FAILURE", f"{type(error).__name__}: {error}"

    def malform(self, event: Event) -> None:
        """Put malformed messages of a few forms into the queues."""
        dice = random.Random(event.number)
        items: list[tuple[str, bytes]] = []
        if self._rabbitmq_url is not None:
            for form in dice.sample(AMQP_FORMS, 4):
                self._threads.submit(self._push_amqp, dice.choice(QUEUES), uuid.uuid4().hex, form)
            return
        for form in dice.sample(list(WITH_ID), 4):
            id = uuid.uuid4().hex
            changes = {"task": "brimful.sample", "call": (("malformed",), {"max_tokens": 4}, {})} | WITH_ID[form]
            items.append((f"{id} {form}", json.dumps(spoilt(id, changes)).encode()))
        for form in dice.sample(list(WITHOUT_ID), 2):
            raw = WITHOUT_ID[form]
            # A letter has the digest of the body, if the message could be taken apart so far.
            digested = base64.b64decode(json.loads(raw)["body"]) if form in TAKEN_APART else raw
            items.append((hashlib.sha256(digested).hexdigest(), raw))
        for name, raw in items:
            self._threads.submit(self._push, dice.choice(QUEUES), name, raw)

    def _push(self, queue: str, name: str, raw: bytes) -> None:
        id, _, form = name.partition(" ")
        self.tried.add(id)
        with self._lock:
            try:
                self._results.lpush(queue, raw)
            except redis.RedisError:
                return  # whether it took the message is unknown
            if form not in FAILED_BY_CELERY:
                self.malformed[id] += 1
            if form:
                self.sent.append(Single("malformed", id, time.monotonic(), accepted=True))

    def _push_amqp(self, queue: str, id: str, form: str) -> None:
        self.tried.add(id)
        changes = {"task": "brimful.sample", "call": (("malformed",), {"max_tokens": 4}, {})} | WITH_ID[form]
        message = spoilt(id, changes)
        assert self._rabbitmq_url is not None
        with self._lock:
            try:
                with reached(self._rabbitmq_url) as connection, connection.Producer() as producer:
                    producer.publish(
                        base64.b64decode(message["body"]),
                        content_type=message["content-type"],
                        content_encoding="utf-8",
                        headers=message["headers"],
                        correlation_id=id,
                        routing_key=queue,
                    )
            except RedisUnreachable:
                return
            if form not in FAILED_BY_CELERY:
                self.malformed[id] += 1
            self.sent.append(Single("malformed", id, time.monotonic(), accepted=True))

    @contextlib.contextmanager
    def flushing(self) -> Iterator[None]:
        """Around a flush of Redis, which takes malformed messages and dead letters away."""
        with self._lock:
            yield
            self.malformed.clear()

    # -- collecting

    def _collect(self) -> None:
        """Record each result when it is first seen: a flush of Redis takes it away again."""
        while not self._over.wait(0.25):
            waiting = self.waiting()
            for start in range(0, len(waiting), 200):
                part = waiting[start : start + 200]
                try:
                    found = self._results.mget([f"celery-task-meta-{single.id}" for single in part])
                except redis.RedisError:
                    break
                for single, raw in zip(part, found, strict=True):
                    if raw is not None:
                        self._record(single, json.loads(raw))

    @staticmethod
    def _record(single: Single, meta: dict[str, Any]) -> None:
        if meta["status"] not in _END_STATES:
            return
        if meta["status"] == "FAILURE":
            message = meta["result"].get("exc_message") or ()
            cause = message[1] if isinstance(message, list) and len(message) > 1 else ""
            single.cause = f"{meta['result'].get('exc_type')} {cause}".strip()
        single.state = meta["status"]

    def waiting(self) -> list[Single]:
        """Those that were asked for, and have no end yet."""
        return [single for single in list(self.sent) if single.accepted and not single.state]
