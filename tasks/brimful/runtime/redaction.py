"""Descriptions of task arguments without prompts, and what else the app puts into its messages.

Celery puts the ``repr`` of a task's arguments into message headers, events and logs. For brimful's tasks these say how
much was asked for, not what. :class:`celery.app.amqp.AMQP.as_task_v2` is read in Celery 5.7.

Private parts of celery 5.7.0:
    celery.app.amqp.AMQP: _create_task_sender
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from celery.app.amqp import AMQP

from brimful.names import APP, SENT_AT, TASK_SAMPLE, TASK_SHARD

_NUMBERS = ("n", "max_tokens", "max_completion_tokens", "temperature", "top_p", "seed")


def describe(name: str, args: Any, kwargs: Any) -> tuple[str, str] | None:
    """(argsrepr, kwargsrepr) for one of brimful's own tasks; None for any other task, whose arguments stay visible."""
    if not name.startswith(f"{APP}."):
        return None
    args = tuple(args) if isinstance(args, (list, tuple)) else ()
    kwargs = kwargs if isinstance(kwargs, Mapping) else {}
    if name == TASK_SHARD:
        run, shard, requests = _shard(args, kwargs)
        return f"({run}, {shard}, <{_count(requests, 'request')}>)", "{}"
    if name == TASK_SAMPLE:
        request = args[0] if args else kwargs.get("request")
        fields = {**(request if isinstance(request, Mapping) else {"prompt": request}), **kwargs}
        prompt = fields.get("prompt")
        listed = isinstance(prompt, (list, tuple)) and bool(prompt) and not isinstance(prompt[0], int)
        prompts = _count(prompt, "prompt") if listed else "1 prompt"
        numbers = {key: fields[key] for key in _NUMBERS if type(fields.get(key)) in (int, float)}
        return f"(<1 request, {prompts}>,)", repr(numbers)
    return f"<{_count(args, 'argument')}>", f"<{_count(kwargs, 'argument')}>"


def _shard(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, str, Any]:
    found = dict(zip(("run", "shard", "requests"), args, strict=False)) | dict(kwargs)
    return str(found.get("run"))[:64], str(found.get("shard"))[:64], found.get("requests")


def _count(things: Any, word: str) -> str:
    number = len(things) if hasattr(things, "__len__") else 0
    return f"{number} {word}{'' if number == 1 else 's'}"


class DiscreetAMQP(AMQP):  # type: ignore[misc]  # celery ships no types
    """Redacts the arguments of every message that the app publishes, and notes when it was published."""

    def _create_task_sender(self) -> Any:
        send = super()._create_task_sender()

        def sender(*args: Any, expiration: Any = None, **options: Any) -> Any:
            # RabbitMQ would drop an expired message, and its task would never end. A worker ends it as revoked.
            return send(*args, **options)

        return sender

    def as_task_v2(
        self, task_id: str, name: str, args: Any = None, kwargs: Any = None, *more: Any, **options: Any
    ) -> Any:
        described = describe(name, args, kwargs)
        if described is not None:
            for option, text in zip(("argsrepr", "kwargsrepr"), described, strict=True):
                if options.get(option) is None:
                    options[option] = text
        message = super().as_task_v2(task_id, name, args, kwargs, *more, **options)
        message.headers[SENT_AT] = round(time.time(), 3)
        return message
