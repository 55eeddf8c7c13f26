"""The systemd way as a new user follows it: the installer, then each unit's ExecStart with the unit's environment."""

from __future__ import annotations

import base64
import os
import shlex
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

from brimful_worker.local.server.valkey import free_port
from support.commands import brimful
from support.gateways import gateway_process
from support.pool_worker import Background
from support.waiting import wait_until

ROOT = Path(__file__).parents[2]
KEY = "sk-systemd-5c1d"


class Unit:
    """A unit below ``root``, as systemd would start it."""

    def __init__(self, root: Path, name: str) -> None:
        self._root = root
        lines = (root / "etc/systemd/system" / name).read_text("utf-8").splitlines()
        self._values: dict[str, list[str]] = {}
        for line in lines:
            option, equals, value = line.partition("=")
            if equals and not line.startswith("#"):
                self._values.setdefault(option, []).append(value)
        self.environment = {"PATH": os.environ["PATH"]}
        for text in self._values.get("Environment", []):
            self.environment |= dict([text.split("=", 1)])
        for path in self._values.get("EnvironmentFile", []):
            self.environment |= environment_of(root / path.lstrip("/"))

    def start(self, **changes: str) -> Background:
        """``changes`` replace words of the command line."""
        directory = self._root / "var/lib" / self._values["StateDirectory"][0]
        directory.mkdir(mode=0o700, parents=True)
        words = [changes.get(word, self._below(word)) for word in shlex.split(self._values["ExecStart"][0])]
        environment = {name: self._below(value) for name, value in self.environment.items()}
        return Background(words, environment, directory / "log")

    def _below(self, text: str) -> str:
        for top in ("/opt/", "/etc/", "/var/lib/"):
            text = text.replace(top, f"{self._root}{top}") if text.startswith(("/", "--")) else text
        return text


def environment_of(path: Path) -> dict[str, str]:
    lines = path.read_text("utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """What the installer made, with an environment that has brimful already."""
    venv = tmp_path / "opt/brimful/bin"
    venv.mkdir(parents=True)
    for name in ("python", "brimful", "celery"):
        (venv / name).write_text(f'#!/bin/sh\nexec {Path(sys.executable).with_name(name)} "$@"\n', "utf-8")
        (venv / name).chmod(0o755)
    for _ in range(2):  # the second time, it keeps what there is
        done = subprocess.run(
            ["sh", str(ROOT / "ops/systemd/install.sh")],
            env={"DESTDIR": str(tmp_path), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    return tmp_path


def test_the_steps_give_a_fleet_that_works(root: Path) -> None:
    etc, port, metrics, flower_port = root / "etc/brimful", free_port(), free_port(), free_port()
    for name in ("brimful.env", "flower.env", "valkey.conf"):
        file = etc / name
        assert file.stat().st_mode & 0o007 == 0, f"{name}: everybody may read it"
        file.write_text(file.read_text("utf-8").replace("6390", str(port)).replace("9540", str(metrics)), "utf-8")
    (etc / "acs_api_key").write_text(KEY)
    with ExitStack() as stack:
        gateway = stack.enter_context(gateway_process("--latency", "0"))
        env = (etc / "brimful.env").read_text("utf-8")
        (etc / "brimful.env").write_text(env.replace("https://provider.example/v1", gateway.url), "utf-8")
        valkey = stack.enter_context(Unit(root, "brimful-valkey.service").start())
        worker_unit = Unit(root, "brimful-worker@.service")
        worker = stack.enter_context(worker_unit.start()).ready()
        flower_unit = Unit(root, "brimful-flower.service")
        address = f"--port={flower_port}"
        flower = stack.enter_context(flower_unit.start(**{"--port=5555": address}))
        url = worker_unit.environment["BRIMFUL_REDIS_URL"]
        code = "import brimful; print(len(brimful.sample.delay('hi', max_tokens=2).get(timeout=60)['choices']))"
        client = subprocess.run(
            [sys.executable, "-c", code],
            env={"BRIMFUL_REDIS_URL": url, "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
        )
        assert client.stdout == "1\n", client.stderr
        page = f"http://127.0.0.1:{flower_port}"
        wait_until(lambda: _status(f"{page}/healthcheck") == 200, "Flower", 60)
        password = flower_unit.environment["BRIMFUL_FLOWER_PASSWORD"]
        assert len(password) >= 20
        assert [_status(f"{page}/api/workers", login) for login in ("", f"brimful:{password}")] == [401, 200]
        assert "API_KEY" not in " ".join(flower_unit.environment)
        told = worker_unit.environment | {"ACS_API_KEY_FILE": str(etc / "acs_api_key")}
        doctor = brimful("doctor", "--flower", page, **told)
        assert doctor.returncode == 0, doctor.stdout
        assert "append-only file" in doctor.stdout
        assert [flower.stop(), worker.stop(), valkey.stop()] == [0, 0, 0]


def _status(url: str, login: str = "") -> int:
    request = urllib.request.Request(url)
    if login:
        request.add_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return 0
