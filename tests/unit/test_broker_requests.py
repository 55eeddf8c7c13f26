"""Celery's Request as the worker makes it of a message."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from brimful.celery import app
from brimful.tasks import shard
from brimful_worker.broker import requests
from brimful_worker.broker.requests import WorkerRequest
from brimful_worker.broker.unacked import UnackedMessages

PAYLOAD: list[Any] = [["run", "shard", [{"id": "1"}]], {}, {"callbacks": None, "errbacks": None}]


@pytest.mark.parametrize(("task", "once"), [(shard.name, True), ("celery.backend_cleanup", False)])
def test_the_body_of_a_shard_is_decoded_once(task: str, once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery's tracer decodes the body that the pool gets, unless it has no content type."""
    monkeypatch.setattr(requests, "unacked", UnackedMessages())
    body, headers = json.dumps(PAYLOAD), {"id": "1", "task": task}
    message = SimpleNamespace(headers=headers, body=body, payload=PAYLOAD, delivery_tag="1")
    more = {"content_type": "application/json", "content_encoding": "utf-8", "delivery_info": {}, "properties": {}}
    message.__dict__.update(more)
    request = WorkerRequest(message, app=app, task=app.tasks[task], body=body, headers=headers, decoded=False)
    assert request.args == PAYLOAD[0]
    assert (request.body, request.content_type) == ((PAYLOAD, None) if once else (body, "application/json"))
