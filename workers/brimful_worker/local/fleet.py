"""A whole fleet on this machine: Redis (embedded, or the one that is set), worker processes, Flower, stand-in gateway.

Start order: hub, workers (which take longest), gateway, Flower. Workers that die are started again; when the owner
dies, however it does, so do they. ``stop`` lets the workers finish what is on the wire, within bounds.
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from json import dumps
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from brimful.config import Settings
from brimful.errors import BrimfulError, ExitCode, FleetError
from brimful.hub import state_dir
from brimful.redis_url import sync_redis_client
from brimful_worker.local.environment import keyless_environment, worker_environment
from brimful_worker.local.hub import Hub
from brimful_worker.local.processes import Child, Lifeline, stop_all
from brimful_worker.local.respawn import Respawn

if TYPE_CHECKING:
    from brimful_worker.local.flower import FlowerChild
    from brimful_worker.local.gateway import GatewayOptions

log = logging.getLogger(__name__)

_LOOK_S = 0.2
_GATEWAY_S = 20.0
_AUXILIARY_STOP_S = 3.0


class LocalFleet:
    """``start``/``stop``, or a context manager.

    ``rehearse`` puts a stand-in gateway and a made-up key in place, on a hub of its own that is never shared and
    leaves no data: a rehearsal's tasks must not reach workers that hold a real key.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        workers: int,
        flower: bool = False,
        rehearse: bool = False,
        valkey_port: int = 0,
        gateway_options: GatewayOptions | Mapping[str, Any] | None = None,
    ) -> None:
        self.settings = settings
        """After ``start``: with Redis's URL, and in a rehearsal the stand-in's URL and key, in place."""
        self.gateway_url: str | None = None
        """Ends in /v1."""
        self.notice = ""
        """Something that the user should know, as of data that could not be read."""
        self._workers = workers
        self._want_flower = flower
        self._rehearse = rehearse
        self._valkey_port = valkey_port
        self._gateway_options = gateway_options
        self._hub: Hub | None = None
        self._lifeline: Lifeline | None = None
        self._children: list[Child] = []
        self._gateway: Child | None = None
        self._flower: FlowerChild | None = None
        self._monitor: threading.Thread | None = None
        self._stopping = threading.Event()
        self._failure: BrimfulError | None = None
        self._respawns = 0
        self._logs: Path | None = None

    @property
    def redis_url(self) -> str:
        assert self.settings.redis_url is not None, "not started"
        return self.settings.redis_url

    @property
    def flower_url(self) -> str | None:
        """With Flower: where it is. It asks for ``flower_login``."""
        return self._flower.url if self._flower else None

    @property
    def flower_login(self) -> tuple[str, str] | None:
        """User and password."""
        return self._flower.login if self._flower else None

    @property
    def worker_pids(self) -> list[int]:
        return [child.pid for child in self._children if child.alive]

    @property
    def respawns(self) -> int:
        """Workers started again so far."""
        return self._respawns

    def start(self) -> None:
        """Returns as soon as all processes are started: work can be enqueued, and is taken when the workers are up.

        Raises SettingError (no key, no URL, a port taken) before anything is started, or FleetError.
        """
        try:
            self._start()
        except BaseException:
            self.stop(0.0)
            raise

    def ready_workers(self, timeout: float = 0.5) -> int:
        """How many of the workers answer a ping within ``timeout`` seconds."""
        from celery import Celery

        from brimful.redis_url import broker_options, broker_url

        with Celery("brimful-local", broker=broker_url(self.redis_url), set_as_current=False) as app:
            app.conf.broker_transport_options = broker_options(
                self.settings.redis_url, self.settings.visibility_timeout_s
            )
            answers = app.control.ping(timeout=timeout, limit=self._workers) or []
        mine = {child.name for child in self._children}
        return sum(1 for answer in answers for node in answer if node.partition("@")[0] in mine)

    def check(self) -> None:
        """Raises what ended the fleet: FleetError or SettingError with the end of a worker's log."""
        if self._failure is not None:
            raise self._failure

    def stop(self, grace_s: float | None = None) -> None:
        """End all of it; idempotent. ``grace_s``: what workers have for requests on the wire (a request's timeout).

        KeyboardInterrupt while waiting ends the waiting: the rest is killed, and it is raised again at the end.
        """
        self._stopping.set()
        if self._monitor is not None:
            self._monitor.join()
            self._monitor = None
        try:
            stop_all(self._children, self.settings.timeout_s + 5.0 if grace_s is None else grace_s)
        finally:
            rest = [child for child in (self._gateway, self._flower and self._flower.child) if child]
            try:
                stop_all(rest, _AUXILIARY_STOP_S)
            finally:
                self._children, self._gateway, self._flower = [], None, None
                self._clear()

    def kill(self) -> None:
        """End all of it now: requests on the wire are lost."""
        for child in self._children:
            child.kill()
        self.stop(0.0)

    def __enter__(self) -> LocalFleet:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self) -> None:
        settings = self.settings
        if self._rehearse:
            key = SecretStr(f"rehearsal-{secrets.token_hex(12)}")
            settings = settings.placed(redis_url="", api_base="http://127.0.0.1:0/v1", api_key=key)
        _ = settings.api_base, settings.api_key  # a missing one is told before anything starts
        directory = state_dir(settings.state_dir) / settings.key_tag
        if self._rehearse or settings.redis_url is None:
            self._hub = Hub(directory, port=self._valkey_port, ephemeral=self._rehearse)
            self._hub.open()
            self.notice = self._hub.info.notice
            redis_url = self._hub.url
            _bless(self._hub, settings)
        else:
            redis_url = settings.redis_url
        self._logs = directory / "logs" / f"{os.getpid()}-{secrets.token_hex(3)}"
        self._logs.mkdir(mode=0o700, parents=True)
        self._lifeline = Lifeline()
        api_base = self._start_gateway(settings) if self._rehearse else settings.api_base
        self.settings = settings.placed(redis_url=redis_url, api_base=api_base, api_key=settings.api_key)
        self._start_workers()
        if self._want_flower:
            from brimful_worker.local.flower import FlowerChild

            self._flower = FlowerChild(self.settings, self._logs, self._lifeline)
            self._flower.start()
        self._monitor = threading.Thread(target=self._watch, name="brimful-fleet", daemon=True)
        self._monitor.start()

    def _start_workers(self) -> None:
        assert self._lifeline is not None
        assert self._logs is not None
        environment = worker_environment(self.settings)
        for number in range(1, self._workers + 1):
            # Names are unique among the fleets of a machine: two nodes of one name answer for each other.
            name = f"worker-{number}-{os.getpid()}"
            child = Child(
                name,
                "worker",
                ["--concurrency", str(self.settings.concurrency), "--name", name],
                environment=environment,
                log=self._logs / f"worker-{number}.log",
                lifeline=self._lifeline,
                # A worker uses the hub too: after its owner's death it still stores what it had on the wire.
                pass_fds=(self._hub.lock_fd,) if self._hub else (),
            )
            child.start()
            self._children.append(child)

    def _start_gateway(self, settings: Settings) -> str:
        """The stand-in with the limits that the fleet keeps; returns its URL."""
        assert self._lifeline is not None
        assert self._logs is not None
        profile = settings.profile
        limits = {"slots": profile.slots, "starts": profile.starts, "window_s": profile.window_s}
        sizes: dict[str, Any] = {
            "max_request_tokens": profile.max_request_tokens,
            "max_tokens_required": profile.max_tokens_required,
            "models": [],
        }
        own = self._gateway_options or {}
        if is_dataclass(own) and not isinstance(own, type):
            own = asdict(own)
        self._gateway = Child(
            "gateway",
            "gateway",
            [dumps({**limits, **sizes, **dict(own)})],
            environment=keyless_environment(settings),
            log=self._logs / "gateway.log",
            lifeline=self._lifeline,
        )
        answers = self._gateway.start(answers=True)
        assert answers is not None
        with answers:
            readable, _, _ = select.select([answers], [], [], _GATEWAY_S)
            self.gateway_url = answers.readline().decode().strip() if readable else None
        if not self.gateway_url:
            raise FleetError(f"the stand-in gateway did not start:\n{self._gateway.log_tail()}")
        return self.gateway_url

    def _watch(self) -> None:
        """Starts again what ended; runs in a thread until ``stop`` or until it gives up."""
        histories = {child.name: Respawn() for child in self._children}
        due: dict[str, float] = {}
        while not self._stopping.wait(_LOOK_S):
            try:
                if self._hub is not None and self._hub.revive():
                    self.notice = self._hub.info.notice
                now = time.monotonic()
                for child in self._children:
                    child.bound_log()
                    if child.alive:
                        continue
                    if child.name not in due:
                        delay = histories[child.name].after(child.returncode or 0, now - child.started_at)
                        if delay is None:
                            raise _gave_up(child)
                        log.warning("%s ended (%s): starting it again", child.name, child.returncode)
                        due[child.name] = now + delay
                    if due[child.name] <= now:
                        del due[child.name]
                        child.start()
                        self._respawns += 1
                if self._flower is not None:
                    self._flower.look()
            except BrimfulError as error:
                self._failure = error
                return
            except OSError as error:  # no more processes or files, for now
                log.warning("the local fleet could not start a process: %s", error)

    def _clear(self) -> None:
        if self._lifeline is not None:
            self._lifeline.close()
            self._lifeline = None
        if self._logs is not None:
            if self._failure is None:
                shutil.rmtree(self._logs, ignore_errors=True)
                _remove_if_empty(self._logs.parent, self._logs.parent.parent)
            self._logs = None
        if self._hub is not None:
            self._hub.close()
            self._hub = None


def _bless(hub: Hub, settings: Settings) -> None:
    """Tell admission that the server's memory is whole: nobody has leases or starts that it lacks."""
    if not hub.bless:
        return
    from brimful_worker.admission import bless

    with sync_redis_client(hub.url) as client:
        bless(client, settings.key_tag)


def _gave_up(child: Child) -> BrimfulError:
    error = FleetError(
        f"{child.name} ended again and again, last with status {child.returncode}; its log ({child.log}) ends:\n"
        f"{child.log_tail()}"
    )
    if child.returncode in (ExitCode.USAGE, ExitCode.KEY_REFUSED):
        error.exit_code = ExitCode(child.returncode)
    return error


def _remove_if_empty(*directories: Path) -> None:
    for directory in directories:
        try:
            directory.rmdir()
        except OSError:
            return
