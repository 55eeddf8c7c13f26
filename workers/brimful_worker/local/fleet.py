"""A whole fleet on this machine: Redis (embedded, or the one that is set), worker processes, Flower, mock gateway.

Workers that die are restarted. When the owner dies, by kill -9 too, all its processes end. ``stop`` lets the workers
finish their requests on the wire for a limited time.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from brimful.config import REHEARSAL_KEY, Settings
from brimful.errors import FleetError
from brimful.state.embedded import state_dir
from brimful.state.probes import worker_queues
from brimful.state.redis_url import address_of, sync_redis_client
from brimful_worker.local.flower.process import FlowerChild, check_port
from brimful_worker.local.processes import door
from brimful_worker.local.processes.child_process import Child, stop_all
from brimful_worker.local.processes.environment import worker_environment
from brimful_worker.local.processes.logs import KEPT, clear_logs
from brimful_worker.local.processes.mock import mock_gateway, start_mock_gateway
from brimful_worker.local.server.shared import SharedValkey
from brimful_worker.local.supervisor import Supervisor

_AUXILIARY_STOP_S = 3.0


class LocalFleet:
    """A fleet of processes on this machine. Call :meth:`start` and :meth:`stop`, or use it as a context manager.

    ``rehearse`` uses a mock gateway, a generated key and a Valkey that is not shared and keeps no data: a rehearsal's
    tasks must not reach workers that hold a real key.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        workers: int,
        flower: bool = False,
        rehearse: bool = False,
        serve_port: int | None = None,
        valkey_port: int = 0,
        keep_logs: bool = False,
        gateway_options: Mapping[str, Any] | None = None,
    ) -> None:
        """``keep_logs``: for a week, however the fleet ends; else only those of one that failed. ``serve_port``: of a
        front door; 0 = a free one, None = no front door. ``gateway_options``: fields of GatewayOptions for a
        rehearsal's mock gateway."""
        self.settings = settings
        """After ``start`` with the URL of its Redis, and in a rehearsal with the mock gateway's URL and key."""
        self.gateway_url: str | None = None
        """Of a rehearsal's mock gateway; ends in /v1."""
        self.flower_url: str | None = None
        self.flower_login: tuple[str, str] | None = None
        """User and password."""
        self.data_loss = ""
        """Says where the embedded Valkey's data was moved if it could not be read."""
        self._workers = workers
        self._want_flower = flower
        self._rehearse = rehearse
        self._serve_port = serve_port
        self._door: door.DoorChild | None = None
        self._valkey_port = valkey_port
        self._keep_logs = keep_logs
        self._gateway_options = gateway_options or {}
        self._valkey: SharedValkey | None = None
        self._owner_pipe: tuple[int, int] | None = None
        """Read and write end. It closes when this process ends."""
        self._children: list[Child] = []
        self._auxiliaries: list[Child] = []
        self._supervisor: Supervisor | None = None
        self._stopping = False
        # `kill` is called while `stop` waits in another thread, or while `start` runs.
        self._lock = threading.RLock()
        self._logs: Path | None = None

    @property
    def logs(self) -> Path | None:
        """Where the processes' logs are; None before the start and after the end."""
        return self._logs

    @property
    def redis_url(self) -> str:
        assert self.settings.redis_url is not None, "not started"
        return self.settings.redis_url

    @property
    def worker_pids(self) -> list[int]:
        return [child.pid for child in self._children if child.alive]

    @property
    def restarts(self) -> int:
        """How often a worker was restarted."""
        return self._supervisor.restarts if self._supervisor else 0

    @property
    def serve_url(self) -> str | None:
        """Of the front door; ends in /v1."""
        return self._door.url if self._door else None

    @property
    def door_ready(self) -> bool:
        """Whether the front door lets requests in; True without one."""
        return self._door is None or self._door.ready

    def check_settings(self) -> None:
        """Raises SettingError (no key, no URL, a port taken). Starts nothing; ``start`` calls it too."""
        if not self._rehearse:
            _ = self.settings.api_base, self.settings.api_key
        if self._want_flower:
            check_port(self.settings)
        if self._serve_port is not None:
            door.check_port(self._serve_port)

    def start(self) -> None:
        """Returns when all processes are started: work can be enqueued, and is taken when the workers are ready.

        Raises SettingError (no key, no URL, a port taken) before anything is started, or FleetError.
        """
        with self._lock:
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
            address_of(self.settings),
            self.settings.visibility_timeout_s,
            timeout_s=timeout,
            limit=self._workers,
        )
        mine = {child.name for child in self._children}
        return sum(node.partition("@")[0] in mine for node in answers)

    def check(self) -> None:
        """Raises FleetError or SettingError, with the end of a worker's log, if the fleet has given up."""
        if self._supervisor is not None and self._supervisor.failure is not None:
            raise self._supervisor.failure

    def stop(self, grace_s: float | None = None) -> None:
        """End all processes; idempotent. Workers have ``grace_s`` for requests on the wire (default: one request's
        timeout). On KeyboardInterrupt the rest is killed, and the exception is raised again."""
        self._stopping = True
        with self._lock:
            try:
                if self._supervisor is not None:
                    self._supervisor.stop()
                stop_all(self._senders, self.settings.timeout_s + 5.0 if grace_s is None else grace_s)
            finally:
                try:
                    stop_all(self._auxiliaries, _AUXILIARY_STOP_S)
                finally:
                    self._children, self._auxiliaries, self._door = [], [], None
                    self._release()

    def kill(self) -> None:
        """End all processes at once; requests on the wire are lost. Another thread may be waiting in ``stop``."""
        self._stopping = True
        if (supervisor := self._supervisor) is not None:
            supervisor.ask_to_stop()
        for child in self._senders:
            child.kill()
        self.stop(0.0)

    def __enter__(self) -> LocalFleet:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self) -> None:
        self.check_settings()
        settings = self.settings
        if self._rehearse:
            key = SecretStr(f"{REHEARSAL_KEY}{secrets.token_hex(12)}")
            settings = settings.placed(redis_url="", api_base="http://127.0.0.1:0/v1", api_key=key)
        directory = state_dir(settings.state_dir) / settings.key_tag
        if self._rehearse or settings.redis_url is None:
            redis_url = self._open_valkey(directory, settings)
        else:
            redis_url = settings.redis_url
        clear_logs(directory / "logs")
        self._logs = directory / "logs" / f"{os.getpid()}-{secrets.token_hex(3)}"
        self._logs.mkdir(mode=0o700, parents=True)
        self._owner_pipe = owner_fd, _ = os.pipe()
        if self._rehearse:
            gateway = mock_gateway(settings, self._gateway_options, self._logs, owner_fd)
            self._auxiliaries.append(gateway)
            self.gateway_url = start_mock_gateway(gateway)
        api_base = self.gateway_url or settings.api_base
        self.settings = settings.placed(redis_url=redis_url, api_base=api_base, api_key=settings.api_key)
        self._start_workers(self._logs, owner_fd)
        if self._serve_port is not None:
            self._door = door.DoorChild(self.settings, self._serve_port, self._logs, owner_fd, self._valkey_fds)
            self._door.child.start()
        flower = None
        if self._want_flower:
            directory.mkdir(mode=0o700, exist_ok=True)
            flower = FlowerChild(self.settings, directory, self._logs, owner_fd)
            self._auxiliaries.append(flower.child)
            flower.child.start()
            self.flower_url, self.flower_login = flower.url, flower.login
        self._supervisor = Supervisor(self._senders, flower, self._valkey)
        self._supervisor.start()

    def _open_valkey(self, directory: Path, settings: Settings) -> str:
        self._valkey = valkey = SharedValkey(directory, port=self._valkey_port, ephemeral=self._rehearse)
        valkey.open()
        self.data_loss = valkey.server.data_loss
        if valkey.memory_complete or valkey.memory_lost:
            from brimful_worker.admission import assume_full, mark_clean

            with sync_redis_client(valkey.server.url) as client:
                if valkey.memory_complete:
                    mark_clean(client, settings.key_tag)
                else:
                    assume_full(client, settings.key_tag)
        return valkey.server.url

    def _start_workers(self, logs: Path, owner_fd: int) -> None:
        environment = worker_environment(self.settings)
        for number in range(1, self._workers + 1):
            # Unique among the fleets of a machine: two nodes of one name would answer for each other.
            name = f"worker-{number}-{os.getpid()}"
            child = Child(
                name,
                "worker",
                ["--concurrency", str(self.settings.concurrency), "--name", name],
                environment=environment,
                log=logs / f"worker-{number}.log",
                owner_fd=owner_fd,
                pass_fds=self._valkey_fds,
            )
            child.start()
            self._children.append(child)

    @property
    def _senders(self) -> list[Child]:
        """The processes that send requests to the provider."""
        return [*self._children, *([self._door.child] if self._door else [])]

    @property
    def _valkey_fds(self) -> tuple[int, ...]:
        """Of the embedded server, which its users keep: after their owner's death they store what was on the wire."""
        return (self._valkey.lock_fd,) if self._valkey else ()

    def _release(self) -> None:
        """Close or delete all that is not a process."""
        for fd in self._owner_pipe or ():
            os.close(fd)
        self._owner_pipe = None
        if self._logs is not None:
            if self._keep_logs or (self._supervisor is not None and self._supervisor.failure is not None):
                (self._logs / KEPT).touch()
            else:
                shutil.rmtree(self._logs, ignore_errors=True)
                with contextlib.suppress(OSError):  # not empty: another fleet's
                    self._logs.parent.rmdir()
                    self._logs.parent.parent.rmdir()
            self._logs = None
        if self._valkey is not None:
            self._valkey.close()
            self._valkey = None
