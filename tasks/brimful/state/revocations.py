"""Revoked tasks, kept in Redis: Celery keeps them in the memory of the workers that are up.

A worker asks for a task's revocation before it samples it, so a task that was revoked while no worker was up is skipped
when one comes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery import Celery
from celery.app.control import Control

from brimful.names import FLEET_SETTING
from brimful.state.keys import revoked_key

REVOCATION_S = 7 * 24 * 3600
"""How long a revocation is kept: a message may wait over a weekend for a worker."""
SKIP, TERMINATE = "skip", "terminate"
"""A revocation's value: the task is not begun; or it is ended too, if it runs."""


class RecordingControl(Control):  # type: ignore[misc]  # celery ships no types
    """Celery's remote control, whose ``revoke`` also records the ids. ``AsyncResult.revoke`` and Flower call it."""

    def revoke(
        self, task_id: str | Iterable[str], destination: Any = None, terminate: bool = False, **more: Any
    ) -> Any:
        ids = [task_id] if isinstance(task_id, str) else list(task_id)
        record_revoked(self.app, ids, TERMINATE if terminate else SKIP)
        return super().revoke(ids, destination, terminate, **more)


def record_revoked(app: Celery, ids: Iterable[str], value: str) -> None:
    """Raises redis.RedisError. Does nothing where the result backend is no Redis."""
    client = getattr(app.backend, "client", None)
    if client is None:
        return
    fleet = app.conf.get(FLEET_SETTING, "")
    with client.pipeline(transaction=False) as pipe:
        for id in ids:
            pipe.set(revoked_key(id, fleet), value, ex=REVOCATION_S)
        pipe.execute()
