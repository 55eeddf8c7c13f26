"""A whole fleet on this machine: Redis (embedded, or the one that is set), worker processes, Flower, mock gateway.

Start order: hub, workers (which take longest), gateway, Flower. Workers that die are started again; when the owner
dies, however it does, so do they. ``stop`` lets the workers finish what is on the wire, within bounds.
"""

from __future__ import annotations

import os
import secrets
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from brimful.config import Settings
from brimful.errors import FleetError
from brimful.state.embedded import state_dir
from brimful.state.probes import worker_queues
from brimful.state.redis_url import sync_redis_client
from brimful_worker.local.flower.process import FlowerChild, check_port
from brimful_worker.local.processes.environment import worker_environment
from brimful_worker.local.processes.logs import KEPT, clear_logs
from brimful_worker.local.processes.mock import MockGateway
from brimful_worker.local.processes.processes import Child, Lifeline, stop_all
from brimful_worker.local.processes.supervisor import Supervisor
from brimful_worker.local.server.hub import Hub

if TYPE_CHECKING:
    from brimful_worker.gateway import GatewayOptions

_AUXILIARY_STOP_S = 3.0


class LocalFleet:
    """``start``/``stop``, or a context manager.

    ``rehearse`` puts a mock gateway and a made-up key in place, on a hub of its own that is never shared and
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
        self._mock_gateway: MockGateway | None = None
        self._flower: FlowerChild | None = None
        self._supervisor: Supervisor | None = None
        self._stopping = False
        # A second Ctrl-C's `kill` comes while `stop` waits in another thread; a first one may come during `start`.
        self._one_at_a_time = threading.RLock()
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
        return self._supervisor.respawns if self._supervisor else 0

    def start(self) -> None:
        """Returns as soon as all processes are started: work can be enqueued, and is taken when the workers are up.

        Raises SettingError (no key, no URL, a port taken) before anything is started, or FleetError.
        """
        with self._one_at_a_time:
            if self._stopping:
                raise FleetError("the fleet was stopped before it had started")
            try:
                self._start()
            except BaseException:
                self.stop(0.0)
                raise

    def ready_workers(self, timeout: float = 0.5) -> int:
        """How many of the workers answer a ping within ``timeout`` seconds."""
        answers = worker_queues(
            self.redis_url, self.settings.visibility_timeout_s, timeout_s=timeout, limit=self._workers
        )
        mine = {child.name for child in self._children}
        return sum(node.partition("@")[0] in mine for node in answers)

    def check(self) -> None:
        """Raises what ended the fleet: FleetError or SettingError with the end of a worker's log."""
        if self._supervisor is not None and self._supervisor.failure is not None:
            raise self._supervisor.failure

    def stop(self, grace_s: float | None = None) -> None:
        """End all of it; idempotent. ``grace_s``: what workers have for requests on the wire (a request's timeout).

        KeyboardInterrupt while waiting ends the waiting: the rest is killed, and it is raised again at the end.
        """
        self._stopping = True
        with self._one_at_a_time:
            self._stop(grace_s)

    def kill(self) -> None:
        """End all of it now: requests on the wire are lost. May be called while ``stop`` waits in another thread."""
        self._stopping = True
        if (supervisor := self._supervisor) is not None:
            supervisor.ask_to_stop()
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

    def _stop(self, grace_s: float | None) -> None:
        if self._supervisor is not None:
            self._supervisor.stop()
        try:
            stop_all(self._children, self.settings.timeout_s + 5.0 if grace_s is None else grace_s)
        finally:
            rest = [part.child for part in (self._mock_gateway, self._flower) if part is not None]
            try:
                stop_all(rest, _AUXILIARY_STOP_S)
            finally:
                self._children, self._mock_gateway, self._flower = [], None, None
                self._clear()

    def _start(self) -> None:
        settings = self.settings
        if self._rehearse:
            key = SecretStr(f"rehearsal-{secrets.token_hex(12)}")
            settings = settings.placed(redis_url="", api_base="http://127.0.0.1:0/v1", api_key=key)
        _ = settings.api_base, settings.api_key  # what is missing is told before anything starts
        if self._want_flower:
            check_port(settings)
        directory = state_dir(settings.state_dir) / settings.key_tag
        if self._rehearse or settings.redis_url is None:
            self._hub = Hub(directory, port=self._valkey_port, ephemeral=self._rehearse)
            self._hub.open()
            self.notice = self._hub.info.notice
            redis_url = self._hub.url
            _mark_clean(self._hub, settings)
        else:
            redis_url = settings.redis_url
        clear_logs(directory / "logs")
        self._logs = directory / "logs" / f"{os.getpid()}-{secrets.token_hex(3)}"
        self._logs.mkdir(mode=0o700, parents=True)
        self._lifeline = Lifeline()
        if self._rehearse:
            self._mock_gateway = MockGateway(settings, self._gateway_options, self._logs, self._lifeline)
            self.gateway_url = self._mock_gateway.start()
        api_base = self.gateway_url or settings.api_base
        self.settings = settings.placed(redis_url=redis_url, api_base=api_base, api_key=settings.api_key)
        self._start_workers()
        if self._want_flower:
            self._flower = FlowerChild(self.settings, self._logs, self._lifeline)
            self._flower.start()
        self._supervisor = Supervisor(self._children, self._flower, self._hub)
        self._supervisor.start()

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

    def _clear(self) -> None:
        if self._lifeline is not None:
            self._lifeline.close()
            self._lifeline = None
        if self._logs is not None:
            if self._supervisor is not None and self._supervisor.failure is not None:
                (self._logs / KEPT).touch()
            else:
                shutil.rmtree(self._logs, ignore_errors=True)
                _remove_if_empty(self._logs.parent, self._logs.parent.parent)
            self._logs = None
        if self._hub is not None:
            self._hub.close()
            self._hub = None


def _mark_clean(hub: Hub, settings: Settings) -> None:
    """Tell admission whether the memory of the server is whole: nobody has leases or starts that it lacks."""
    if not hub.mark_clean and not hub.forgot:
        return
    from brimful_worker.admission import assume_full, mark_clean

    with sync_redis_client(hub.url) as client:
        if hub.mark_clean:
            mark_clean(client, settings.key_tag)
        else:
            assume_full(client, settings.key_tag, starts=settings.profile.starts, tokens=settings.profile.tokens)


def _remove_if_empty(*directories: Path) -> None:
    for directory in directories:
        try:
            directory.rmdir()
        except OSError:
            return
