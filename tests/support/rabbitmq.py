"""A RabbitMQ of Debian's package as a child process, on ports of its own and with no daemon that outlives it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from brimful.errors import RedisUnreachable
from brimful.state.rabbitmq.reach import check_broker
from brimful_worker.local.server.valkey import free_port
from support.waiting import wait_until

# Not the one on PATH: as root, that changes the user.
SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
EPMD = shutil.which("epmd")
NEEDS_RABBITMQ = pytest.mark.skipif(
    EPMD is None or not SERVER.exists(), reason="no RabbitMQ here: `make compat` installs Debian's rabbitmq-server"
)
PASSWORD, QUOTED = "rabbit/s3cret@1", "rabbit%2Fs3cret%401"
VHOST = "of brimful/1"
_START_S = 120.0


def _hashed(password: str) -> str:
    """As RabbitMQ keeps it: four bytes of salt, then the SHA-256 of these and the password."""
    salt = b"salt"
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


def _permissions(user: str, write: str) -> dict[str, str]:
    return {"user": user, "vhost": VHOST, "configure": ".*", "write": write, "read": ".*"}


_DEFINITIONS = {
    "vhosts": [{"name": VHOST}],
    "users": [{"name": name, "password_hash": _hashed(PASSWORD), "tags": []} for name in ("fleet", "reader")],
    "permissions": [_permissions("fleet", ".*"), _permissions("reader", "^$")],
}


class RabbitMQ:
    """One node on 127.0.0.1. ``start``/``stop``, or a context manager; ``kill`` is kill -9."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port, self._dist_port, self._epmd_port = free_port(), free_port(), free_port()
        self._epmd: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._family: list[psutil.Process] = []

    @property
    def url(self) -> str:
        return f"amqp://fleet:{QUOTED}@127.0.0.1:{self.port}/of%20brimful%2F1"

    @property
    def url_of_reader(self) -> str:
        """Of a user who may not publish."""
        return self.url.replace("//fleet:", "//reader:")

    @property
    def pids(self) -> list[int]:
        """Of the Erlang machine and what it started."""
        return [process.pid for process in self._family if process.is_running()]

    def start(self) -> None:
        """Returns when it answers. The data of an earlier start is kept."""
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "enabled_plugins").write_text("[].\n")
        definitions = self.directory / "definitions.json"
        definitions.write_text(json.dumps(_DEFINITIONS))
        (self.directory / "rabbitmq.conf").write_text(
            f"load_definitions = {definitions}\ndisk_free_limit.absolute = 1MB\nlog.file.level = warning\n"
        )
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.directory),  # of Erlang's cookie
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"brimful-{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_MNESIA_BASE": str(self.directory / "data"),
            "RABBITMQ_LOG_BASE": str(self.directory / "log"),
            "RABBITMQ_CONFIG_FILE": str(self.directory / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "enabled_plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(self.directory / "none"),
            # One scheduler that sleeps when it is idle: tests share the machine.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none",
        }
        log = self.directory / "console.log"
        with log.open("ab") as out:
            options = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out, "env": env, "cwd": self.directory}
            if self._epmd is None:  # else Erlang starts one as a daemon
                assert EPMD is not None
                self._epmd = subprocess.Popen([EPMD, "-port", str(self._epmd_port)], **options)  # type: ignore[call-overload]
            self._process = subprocess.Popen([str(SERVER)], start_new_session=True, **options)  # type: ignore[call-overload]
        wait_until(lambda: self._answers(log), "RabbitMQ to answer", _START_S)
        self._look()

    def _answers(self, log: Path) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"RabbitMQ ended: {log.read_text(errors='replace')[-2000:]}"
        try:
            check_broker(self.url, 2.0)
        except RedisUnreachable:
            return False
        return True

    def _look(self) -> None:
        if self._process is not None and self._process.poll() is None:
            process = psutil.Process(self._process.pid)
            self._family = [process, *process.children(recursive=True)]

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL: only what it has on its disk is kept."""
        self._look()
        self._signal(signal.SIGKILL)
        psutil.wait_procs(self._family, 30)
        if self._process is not None:
            self._process.wait()
        self._process, self._family = None, []

    def stop(self) -> None:
        """Idempotent."""
        if self._process is not None:
            self.kill()  # tests read nothing of it afterwards
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait()
            self._epmd = None

    def _signal(self, number: signal.Signals) -> None:
        for process in self._family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def __enter__(self) -> RabbitMQ:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
