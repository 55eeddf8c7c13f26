"""An app that is not brimful's, for tests of the pool: ``celery -A support.pool_app worker -P custom``.

Tasks write what happens to them into Redis lists: ``starts:<task id>``, ``ends:<task id>`` and ``log``.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import redis
from celery import Celery
from celery.exceptions import Reject, SoftTimeLimitExceeded

from brimful.state.redis_url import broker_options

URL = os.environ.get("POOL_APP_REDIS", "redis://127.0.0.1:1/0")
VISIBILITY_S = int(os.environ.get("POOL_APP_VISIBILITY", "15"))

app = Celery("pool_app", broker=URL, backend=URL, set_as_current=False)
app.conf.update(
    task_acks_late=True,
    task_track_started=True,
    worker_prefetch_multiplier=1,
    worker_send_task_events=True,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_channel_error_retry=True,
    broker_transport_options=broker_options(VISIBILITY_S),
    result_backend_always_retry=True,
    result_backend_max_sleep_between_retries_ms=2000,
    result_backend_thread_safe=True,
    worker_soft_shutdown_timeout=float(os.environ.get("POOL_APP_SOFT_SHUTDOWN", "0")),
)

# Of its own server when the fleet's is the one being killed.
_notes = redis.Redis.from_url(os.environ.get("POOL_APP_NOTES", URL), decode_responses=True)
_running = 0
_peak = 0
_met = 0
_all_met: asyncio.Event | None = None


def note(key: str, value: Any = 1) -> None:
    _notes.rpush(key, value)


@app.task(name="t.nap", bind=True)
async def nap(self: Any, seconds: float) -> dict[str, Any]:
    global _running, _peak
    note(f"starts:{self.request.id}", os.getpid())
    _running += 1
    _peak = max(_peak, _running)
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        note(f"cancelled:{self.request.id}")
        raise
    finally:
        _running -= 1
    note(f"ends:{self.request.id}", os.getpid())
    return {"id": self.request.id, "peak": _peak}


@app.task(name="t.meet")
async def meet(number: int) -> int:
    """Returns once ``number`` of these are running together."""
    global _met, _all_met
    _all_met = _all_met or asyncio.Event()
    _met += 1
    if _met == number:
        _all_met.set()
    await _all_met.wait()
    return _met


@app.task(name="t.fail")
async def fail(message: str) -> None:
    raise ValueError(message)


@app.task(name="t.fail_late", bind=True)
async def fail_late(self: Any, message: str, seconds: float) -> None:
    note(f"starts:{self.request.id}", os.getpid())
    await asyncio.sleep(seconds)
    note(f"ends:{self.request.id}", os.getpid())
    raise ValueError(message)


@app.task(name="t.big", bind=True)
async def big(self: Any, size: int) -> str:
    note(f"starts:{self.request.id}", os.getpid())
    return "x" * size


@app.task(name="t.plain")
def plain(a: int, b: int) -> int:
    return a + b


@app.task(name="t.plain_loop", bind=True)
def plain_loop(self: Any) -> str:
    note(f"starts:{self.request.id}")
    try:
        while True:
            time.sleep(0.01)
    except SoftTimeLimitExceeded:
        return "soft"


@app.task(name="t.stubborn", bind=True)
async def stubborn(self: Any) -> str:
    """Swallows its cancellation and returns."""
    note(f"starts:{self.request.id}")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        await asyncio.sleep(0.2)
    note(f"ends:{self.request.id}")
    return "late"


@app.task(name="t.soft", bind=True)
async def soft(self: Any) -> str:
    note(f"starts:{self.request.id}")
    try:
        await asyncio.gather(asyncio.sleep(60), asyncio.sleep(60))
    except SoftTimeLimitExceeded:
        await asyncio.sleep(0)
        return "soft"
    return "no limit"


@app.task(name="t.exit")
async def leave() -> None:
    raise SystemExit(3)


@app.task(name="t.die", bind=True)
def die(self: Any) -> None:
    note(f"starts:{self.request.id}")
    os.kill(os.getpid(), 9)


@app.task(name="t.give_back", bind=True)
async def give_back(self: Any) -> str:
    note(f"starts:{self.request.id}", os.getpid())
    if _notes.llen(f"starts:{self.request.id}") == 1:
        raise Reject("not now", requeue=True)
    return "second time"


@app.task(name="t.whoami", bind=True)
async def whoami(self: Any) -> list[str]:
    await asyncio.sleep(0)
    child = plain.apply_async((1, 2), add_to_parent=True)
    return [self.request.id, child.id, app.current_task.request.id]
