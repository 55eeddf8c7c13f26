"""ops/valkey.conf on a real server, started the way docker-compose.yml does."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from brimful_worker.local.server.valkey import binary, free_port
from support.waiting import wait_until

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]


@contextmanager
def compose_valkey(tmp_path: Path, password: str) -> Iterator[int]:
    """The service's own shell command, with the container's paths moved below ``tmp_path``."""
    conf = tmp_path / "valkey.conf"
    conf.write_text((ROOT / "ops" / "valkey.conf").read_text("utf-8"), "utf-8")
    (tmp_path / "run").mkdir()
    port = free_port()
    service = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))["services"]["valkey"]
    script = (
        service["command"][0]
        .replace("$$", "$")
        .replace("/etc/valkey/valkey.conf", str(conf))
        .replace("/run/valkey", str(tmp_path / "run"))
        .replace("dir /data", f"dir {tmp_path}")
        .replace("exec valkey-server", f"exec {binary()}")
        .rstrip()
    )
    server = subprocess.Popen(
        [*service["entrypoint"], f"{script} --port {port} --bind 127.0.0.1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "BRIMFUL_REDIS_PASSWORD": password},
    )
    try:
        yield port
    finally:
        server.terminate()
        server.wait(60)


def answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def test_it_persists_evicts_nothing_and_requires_its_password(tmp_path: Path) -> None:
    with compose_valkey(tmp_path, "s3cret") as port, redis.Redis(port=port, password="s3cret") as client:
        wait_until(lambda: answers(client), "the server")
        settings = client.config_get("maxmemory-policy", "append*", "save")
        assert settings["maxmemory-policy"] == "noeviction"
        assert (settings["appendonly"], settings["appendfsync"], settings["save"]) == ("yes", "everysec", "")
        with redis.Redis(port=port) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        assert (tmp_path / "run" / "valkey.conf").stat().st_mode & 0o077 == 0


def test_without_a_password_it_accepts_connections_from_its_network(tmp_path: Path) -> None:
    with compose_valkey(tmp_path, "") as port, redis.Redis(port=port) as client:
        wait_until(lambda: answers(client), "the server")
        assert client.config_get("protected-mode") == {"protected-mode": "no"}


def test_kubernetes_uses_the_same_file() -> None:
    assert (ROOT / "ops" / "k8s" / "base" / "valkey.conf").read_text("utf-8") == (
        ROOT / "ops" / "valkey.conf"
    ).read_text("utf-8")
