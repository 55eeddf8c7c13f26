"""Private parts of celery, kombu and redis-py that the worker leans on, compared with the releases they were read in.

The docstring of the one module that uses a part lists it under "Private parts of PACKAGE VERSION:".
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import pytest

from support import house, upstream

SIGNATURES = {
    "celery.app.amqp.AMQP._create_task_sender": "(self)",
    "celery.backends.asynchronous.BaseResultConsumer.reconnect_on_error": "(self)",
    "celery.backends.base.BaseKeyValueStoreBackend._get_result_meta": (
        "(self, result, state, traceback, request, format_date=True, encode=False)"
    ),
    "celery.backends.base.BaseKeyValueStoreBackend._store_result": (
        "(self, task_id, result, state, traceback=None, request=None, **kwargs)"
    ),
    "celery.backends.base.BaseKeyValueStoreBackend._strip_prefix": "(self, key)",
    "celery.backends.base.BaseKeyValueStoreBackend.encode": "(self, data)",
    "celery.backends.base.BaseKeyValueStoreBackend.get_key_for_task": "(self, task_id, key='')",
    "celery.backends.redis.ResultConsumer._locked": "(self)",
    "celery.backends.redis.ResultConsumer._reconnect": "(self)",
    "celery.app.trace.saferepr": "(o, maxlen=None, maxlevels=3, seen=None)",
    "celery.backends.redis.RedisBackend._set": "(self, key, value, expires=None)",
    "celery.backends.redis.RedisBackend.exception_safe_to_retry": "(self, exc)",
    "celery.backends.redis.RedisBackend.on_task_call": "(self, producer, task_id)",
    "celery.concurrency.base.BasePool._get_info": "(self)",
    "celery.concurrency.base.BasePool.flush": "(self)",
    "celery.concurrency.base.BasePool.on_apply": "(self, *args, **kwargs)",
    "celery.concurrency.base.BasePool.on_close": "(self)",
    "celery.concurrency.base.BasePool.on_start": "(self)",
    "celery.concurrency.base.BasePool.on_stop": "(self)",
    "celery.concurrency.base.BasePool.on_terminate": "(self)",
    "celery.concurrency.base.BasePool.register_with_event_loop": "(self, loop)",
    "celery.concurrency.base.BasePool.terminate_job": "(self, pid, signal=None)",
    "celery.utils.threads._LocalStack.pop": "(self)",
    "celery.utils.threads._LocalStack.push": "(self, obj)",
    "celery.events.dispatcher.EventDispatcher.flush": "(self, errors=True, groups=True)",
    "celery.worker.consumer.consumer.Consumer._flush_events": "(self)",
    "celery.worker.consumer.consumer.Consumer.on_send_event_buffered": "(self)",
    "celery.worker.consumer.mingle.Mingle.send_hello": "(self, c)",
    "celery.worker.consumer.consumer.Consumer.create_task_handler": "(self, promise=<class 'vine.promises.promise'>)",
    "celery.worker.consumer.consumer.Consumer.on_decode_error": "(self, message, exc)",
    "celery.worker.consumer.consumer.Consumer.on_invalid_task": "(self, body, message, exc)",
    "celery.worker.consumer.consumer.Consumer.on_unknown_message": "(self, body, message)",
    "celery.worker.consumer.consumer.Consumer.on_unknown_task": "(self, body, message, exc)",
    "celery.worker.consumer.tasks.Tasks.qos_global": "(self, c)",
    "celery.worker.consumer.consumer.dump_body": "(m, body)",
    "celery.worker.request.Request.cancel": "(self, pool, signal=None, emit_retry=True)",
    "celery.worker.request.Request.info": "(self, safe=False)",
    "celery.worker.request.Request.on_accepted": "(self, pid, time_accepted)",
    "celery.worker.request.Request.on_failure": "(self, exc_info, send_failed_event=True, return_ok=False)",
    "celery.worker.request.Request.on_success": "(self, failed__retval__runtime, **kwargs)",
    "celery.worker.request.Request.revoked": "(self)",
    "celery.worker.state.maybe_shutdown": "()",
    "kombu.asynchronous.hub.Hub._pop_ready": "(self)",
    "kombu.asynchronous.hub.Hub.call_soon": "(self, callback, *args)",
    "kombu.asynchronous.hub.Hub.fire_timers": "(self, min_delay=1, max_delay=10, max_timers=10, propagate=())",
    "kombu.asynchronous.semaphore.LaxBoundedSemaphore.release": "(self)",
    "kombu.transport.redis.Channel._basic_cancel": "(self, consumer_tag)",
    "kombu.transport.redis.Channel._brpop_read": "(self, **options)",
    "kombu.transport.redis.Channel._brpop_start": "(self, timeout=None)",
    "kombu.transport.redis.Channel._close_clients": "(self)",
    "kombu.transport.redis.Channel._connparams": "(self, asynchronous=False)",
    "kombu.transport.redis.Channel._create_client": "(self, asynchronous=False)",
    "kombu.transport.redis.Channel._disconnect_pools": "(self)",
    "kombu.transport.redis.Channel._flush_brpop_reauth": "(self)",
    "kombu.transport.redis.Channel._get_message_priority": "(self, message, reverse=False)",
    "kombu.transport.redis.Channel._lookup": "(self, exchange, routing_key, default=None)",
    "kombu.transport.redis.Channel._q_for_pri": "(self, queue, pri)",
    "kombu.transport.redis.Channel._receive_one": "(self, c)",
    "kombu.transport.redis.Channel.basic_consume": "(self, queue, *args, **kwargs)",
    "kombu.transport.redis.Channel.close": "(self)",
    "kombu.transport.redis.Channel.conn_or_acquire": "(self, client=None)",
    "kombu.transport.redis.MultiChannelPoller.maybe_refresh_binding_expiry": "(self)",
    "kombu.transport.redis.Mutex": "(client, name, expire)",
    "kombu.transport.redis.QoS._flush": "(self)",
    "kombu.transport.redis.QoS.ack": "(self, delivery_tag)",
    "kombu.transport.redis.QoS.append": "(self, message, delivery_tag)",
    "kombu.transport.redis.QoS.pipe_or_acquire": "(self, pipe=None, client=None)",
    "kombu.transport.redis.QoS.reject": "(self, delivery_tag, requeue=False)",
    "kombu.transport.redis.QoS.restore_by_tag": "(self, tag, client=None, leftmost=False)",
    "kombu.transport.redis.QoS.restore_unacked": "(self, client=None)",
    "kombu.transport.redis.QoS.restore_unacked_once": "(self, stderr=None)",
    "kombu.transport.redis.QoS.restore_visible": "(self, start=0, num=10, interval=10)",
    "kombu.transport.redis.Transport.register_with_event_loop": "(self, connection, loop)",
    "kombu.transport.virtual.base.Channel.close": "(self)",
    "kombu.transport.virtual.base.Transport._deliver": "(self, message, queue)",
    "kombu.transport.virtual.base.QoS.ack": "(self, delivery_tag)",
    "kombu.transport.virtual.base.QoS.append": "(self, message, delivery_tag)",
    "redis.asyncio.connection.Connection.pack_command": "(self, *args)",
    "redis.connection.HiredisRespSerializer.pack": "(self, *args)",
}
"""Of the parts that are called or overridden: parameter names and defaults."""
REPLACED = {
    "kombu.transport.redis:Channel._brpop_read": "f7e4afb7bac8",
    "kombu.transport.redis:Channel._brpop_start": "2d099d0ee937",
    "kombu.transport.redis:Channel._do_restore_message": "da0a34bede21",
    "kombu.transport.redis:Channel.close": "4ad357384c8c",
    "kombu.transport.redis:MultiChannelPoller.on_poll_start": "a9f9ef4459fd",
    "kombu.transport.redis:QoS.append": "ae20f14cfeba",
    "kombu.transport.redis:QoS.restore_by_tag": "c2ba203636cc",
    "kombu.transport.redis:QoS.restore_unacked": "5f651a0d0dc8",
    "kombu.transport.redis:QoS.restore_visible": "7b9b71038d44",
    "celery.backends.base:BaseKeyValueStoreBackend._store_result": "da591cc2bfb4",
    "celery.worker.consumer.mingle:Mingle.send_hello": "b0f6c6904fcf",
}
"""Methods whose work a method of ours does instead, or whose order it relies on: digests of their sources."""


@dataclass(frozen=True)
class Part:
    """One upstream name that one of our modules lists."""

    module: str
    """Ours."""
    package: str
    read_in: str
    name: str

    def __str__(self) -> str:
        return self.name

    def sentence(self, what: str) -> str:
        return (
            f"{self.name} {what} in {self.package} {version(self.package)}; {self.module} leans on it as it was read "
            f"in {self.package} {self.read_in}: read it again, mend that module, and renew its docstring and this test"
        )


def listed() -> Iterator[Part]:
    for module, file in house.modules().items():
        source = file.read_text("utf-8")
        text = ast.get_docstring(ast.parse(source)) or "" if "\nPrivate parts of " in source else ""
        for package, read_in, block in re.findall(r"^Private parts of (\S+) (\S+):\n((?: .*\n?)+)", text, re.MULTILINE):
            for owner, names in re.findall(r"^    ([\w.]+): (.*(?:\n        .*)*)", block, re.MULTILINE):
                yield from (Part(module, package, read_in, f"{owner}.{name}") for name in re.findall(r"\w+", names))


PARTS = list(listed())


def test_every_signature_is_that_of_a_listed_part() -> None:
    assert set(SIGNATURES) <= {part.name for part in PARTS}
    assert len(PARTS) > 40


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_an_upstream_part_is_as_it_was_read(part: Part) -> None:
    check(part, SIGNATURES.get(part.name))


def check(part: Part, signature: str | None) -> None:
    try:
        found = find(part.name)
    except (AttributeError, ModuleNotFoundError):
        pytest.fail(part.sentence("is gone"))
    if inspect.isroutine(found) and (now := shown(found)) != signature:
        pytest.fail(part.sentence(f"takes {now}, and not {signature}"))


def find(name: str) -> Any:
    """The object of a dotted name; None for an attribute that only methods set. Raises AttributeError."""
    head, *tail = name.split(".")
    found: Any = importlib.import_module(head)
    for place, attribute in enumerate(tail):
        try:
            found = getattr(found, attribute)
        except AttributeError:
            if not inspect.isclass(found):
                found = importlib.import_module(".".join([head, *tail[: place + 1]]))
            elif re.search(rf"\bself\.{attribute}\b.* = ", "".join(map(_source, found.__mro__))):
                found = None
            else:
                raise
    return found


def _source(kind: type) -> str:
    return "" if kind is object else inspect.getsource(kind)


def shown(function: Any) -> str:
    """``(self, one, two=None)``: without annotations, which read differently in each Python."""
    signature = inspect.signature(function)
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


@pytest.mark.parametrize(("name", "digest"), REPLACED.items())
def test_a_replaced_method_does_what_it_did(name: str, digest: str) -> None:
    part = next(part for part in PARTS if part.name.startswith(name.partition(":")[0]))
    upstream.check(name, digest, read_in=f"{part.package} {part.read_in}", used_by=part.module)


def test_each_is_imported_only_where_it_is_listed() -> None:
    homes: dict[str, set[str]] = {}
    for part in PARTS:
        for place in _places(part.name):
            homes.setdefault(place, set()).add(part.module)
    wrong = [
        f"{module}:{line} imports {name}, which only {', '.join(sorted(homes[name]))} may"
        for module, file in house.modules().items()
        for line, name in _imports(ast.parse(file.read_text("utf-8")))
        if module not in homes.get(name, {module})
    ]
    assert not wrong, "\n".join(wrong)


def _places(name: str) -> tuple[str, str]:
    """A part's module, and its outermost object there."""
    words = name.split(".")
    depth = next(count for count in range(len(words), 0, -1) if _is_module(".".join(words[:count])))
    return ".".join(words[:depth]), ".".join(words[: depth + 1])


def _is_module(name: str) -> bool:
    try:
        return importlib.import_module(name) is not None
    except ModuleNotFoundError:
        return False


def _imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            yield node.lineno, f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name


@pytest.mark.parametrize(
    ("name", "signature", "words"),
    [
        ("kombu.transport.redis.Channel._no_such_thing", None, "is gone"),
        ("kombu.transport.redis.Channel._brpop_start", "(self)", "takes (self, timeout=None), and not (self)"),
    ],
)
def test_a_change_is_told_with_the_part_the_releases_and_the_module(
    name: str, signature: str | None, words: str
) -> None:
    part = Part("brimful_worker.broker.transport", "kombu", "5.0.0", name)
    with pytest.raises(pytest.fail.Exception) as told:
        check(part, signature)
    for expected in (name, words, f"kombu {version('kombu')}", "kombu 5.0.0", "brimful_worker.broker.transport"):
        assert expected in str(told.value)
