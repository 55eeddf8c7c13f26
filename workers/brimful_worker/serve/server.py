"""The front door as a process: listens, joins its fleet, and drains when it is asked to stop."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import uvloop
from aiohttp import web

from brimful.config import Settings
from brimful.errors import SettingError
from brimful.names import FRONT_DOOR
from brimful.runtime import span_export
from brimful.runtime.aio import cancel_and_wait
from brimful.state.callers.tokens import list_callers
from brimful.state.redis_retry import REDIS_ERRORS
from brimful.state.redis_url import required, sync_redis_client
from brimful_worker.fleet_process import open_metrics
from brimful_worker.gc_tuning import tune_gc
from brimful_worker.logs.json_format import use_log_format
from brimful_worker.serve.app import make_app
from brimful_worker.serve.expiry import delete_expired
from brimful_worker.serve.front import Front

log = logging.getLogger(__name__)

_BACKLOG = 8192
_KEEPALIVE_S = 75.0
"""As common load balancers have it."""
_PROBES = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""A caller whose machine is gone is noticed after 30 s of silence."""
_CUT_S = 2.0
"""For the last bytes of answers, once nothing is under way any more or the grace is over."""
_FORMAT = "[%(asctime)s: %(levelname)s] %(message)s"


def serve(settings: Settings, *, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM. ``ready`` is called with the base URL, which ends in /v1, when it listens.

    It listens before Redis is reached, and answers 503 until then. Raises SettingError if it cannot listen or a setting
    is missing, and FleetTaken if the fleet is another API key's.
    """
    required(settings.redis_url)
    check_address(host, lambda: _tokens_exist(settings))
    _ = settings.api_base, settings.key_tag  # raise SettingError if they are not set
    logging.basicConfig(level=settings.log_level.upper(), format=_FORMAT)
    use_log_format(settings, name := f"serve@{socket.gethostname()}")
    span_export.set_up("brimful-serve", name)
    with listen(host, port) as listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        open_metrics(settings)
        tune_gc()
        runner.run(_serve(settings, host, listener, ready))


def check_address(host: str, tokens_exist: Callable[[], bool]) -> None:
    """Raises SettingError for an address that others can reach, if no caller has a token."""
    if host == "localhost" or _is_loopback(host) or tokens_exist():
        return
    raise SettingError(
        f"--host {host}: without tokens, brimful serve listens on this machine only (127.0.0.1 or ::1): everybody who "
        "reaches it samples with the fleet's API key; `brimful serve token add NAME` makes a token"
    )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _tokens_exist(settings: Settings) -> bool:
    """Also True without Redis: on such an address nobody is let in without a token, whatever Redis says later."""
    try:
        with sync_redis_client(required(settings.redis_url), socket_timeout=5, socket_connect_timeout=5) as client:
            return any(list_callers(client, settings.fleet).values())
    except REDIS_ERRORS:
        return True


def listen(host: str, port: int) -> socket.socket:
    """Raises SettingError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        reason = error.strerror or str(error)
        raise SettingError(f"--port {port}: cannot listen on {host}:{port}: {reason}; take another, or 0") from None
    for name, value in _PROBES.items():  # of the connections too, which inherit them
        if hasattr(socket, name):
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return listener


async def _serve(settings: Settings, host: str, listener: socket.socket, ready: Callable[[str], None]) -> None:
    stop = _StopSignals()
    async with opened(settings, listener) as (front, joined):
        # On a terminal, SIGHUP says that it is closed; ignored, as by nohup, it stays so.
        means_key = not sys.stdout.isatty() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
        if settings.api_key_file is not None and means_key:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, front.process.look_at_key)
        ready(f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}/v1")
        await _wait(joined, stop.asked)
        if joined.done():
            joined.result()
        log.info("stopping: %d requests are under way", len(front.gate.turns))
        listener.close()
        drained = asyncio.create_task(front.gate.drain(settings.timeout_s + settings.serve_keepalive_s))
        await _wait(drained, stop.insisted)
        await cancel_and_wait([drained])


@asynccontextmanager
async def opened(settings: Settings, listener: socket.socket) -> AsyncIterator[tuple[Front, asyncio.Task[None]]]:
    """A front door on a listening socket. The task joins the fleet and keeps the gate until that drains.

    Leaving cuts off whatever is under way.
    """
    address, port = listener.getsockname()[:2]
    front = Front(settings, f"{FRONT_DOOR}{port}@{socket.gethostname()}", tokens_required=not _is_loopback(address))
    runner = web.AppRunner(
        make_app(front),
        handler_cancellation=True,  # a caller that disconnects ends its request
        access_log=None,
        logger=_http_log(),
        keepalive_timeout=_KEEPALIVE_S,
        shutdown_timeout=_CUT_S,
    )
    await runner.setup()
    async with front.once:
        await web.SockSite(runner, listener, backlog=_BACKLOG).start()
        joined = asyncio.create_task(_join(front))
        callers = asyncio.create_task(front.callers.watch(front.once.pipeline))
        feed = asyncio.create_task(front.feed.run(front.recent))
        try:
            yield front, joined
        finally:
            await cancel_and_wait([feed])  # else open pages would hold up the end
            await runner.cleanup()
            await cancel_and_wait([joined, callers])
            await front.slots.aclose()
            with contextlib.suppress(*REDIS_ERRORS, TimeoutError):
                await asyncio.wait_for(front.callers.write_usage(front.once.pipeline), _CUT_S)
            await front.process.aclose()


def _http_log() -> logging.Logger:
    """For aiohttp's own errors, whose text holds what a caller sent, also its token: their types are enough."""

    def without_text(record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[0] is not None:
            record.msg, record.exc_info = f"{record.msg}: {record.exc_info[0].__name__}", None
        return True

    found = logging.getLogger(f"{__name__}.http")
    found.filters = [without_text]
    return found


async def _join(front: Front) -> None:
    """Returns when the gate drains."""
    await front.process.start()
    log.info("Redis is reached")
    shares = front.shares.watch(front.once.pipeline)
    work = (front.scheduler.run(), delete_expired(front.files, front.batches), shares)
    working = [asyncio.create_task(each) for each in work]
    try:
        await front.gate.watch(lambda: front.process.key.admission.failure)
    finally:
        await cancel_and_wait(working)


async def _wait(task: asyncio.Task[None], event: asyncio.Event) -> None:
    """Returns when the task is done or the event is set."""
    waiting = asyncio.create_task(event.wait())
    await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
    await cancel_and_wait([waiting])


class _StopSignals:
    """SIGINT, SIGTERM: the first asks to stop, the second insists."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.insisted = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        (self.insisted if self.asked.is_set() else self.asked).set()
