"""The local hub: one embedded Valkey per key, with real processes."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
import redis

from brimful.errors import SettingError
from brimful.state.keys import admission_keys
from brimful_worker.local.server.hub import Hub
from brimful_worker.local.server.valkey import free_port
from support.waiting import wait_until

_USER = """
import sys
from pathlib import Path
from brimful_worker.local.server.hub import Hub
with Hub(Path(sys.argv[1])) as hub:
    print(hub.url, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "state" / "brimful" / "0123456789abcdef"
    yield directory
    wait_until(lambda: not _processes_of(directory), "the hub's processes to end")


def _processes_of(directory: Path) -> list[psutil.Process]:
    """By command line, and the server, which rewrites its own, by its working directory."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = [*(process.info["cmdline"] or ()), process.info["cwd"] or ""]
        if any(word.startswith(str(directory)) for word in words):
            found.append(process)
    return found


def _user(directory: Path) -> tuple[subprocess.Popen[str], str]:
    environment = {**os.environ, "ACS_API_KEY": "sk-very-secret"}
    process = subprocess.Popen(
        [sys.executable, "-c", _USER, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def _end(process: subprocess.Popen[str]) -> None:
    with process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == 0


def _client(hub: Hub) -> redis.Redis:
    return redis.Redis.from_url(hub.url, socket_timeout=5)


def test_two_users_share_one_server_and_the_last_one_ends_it(directory: Path) -> None:
    process, url = _user(directory)
    with Hub(directory) as hub:
        assert hub.url == url
        _end(process)
        with _client(hub) as client:
            assert client.ping()
    assert not _processes_of(directory)


def test_many_that_start_at_once_start_one_server(directory: Path) -> None:
    code = _USER.replace("sys.stdin.read()", "")
    with ExitStack() as stack:
        stack.enter_context(Hub(directory.parent / "other"))  # another key's hub is none of theirs
        users = [
            stack.enter_context(
                subprocess.Popen([sys.executable, "-c", _USER, str(directory)], stdin=subprocess.PIPE, stdout=-1)
            )
            for _ in range(3)
        ]
        urls = {user.stdout.readline() for user in users if user.stdout}
        assert len(urls) == 1
        for user in users:
            assert user.stdin is not None
            user.stdin.close()
    # And users that come and go meet a server at every moment.
    for _ in range(3):
        subprocess.run([sys.executable, "-c", code, str(directory)], check=True, stdout=subprocess.DEVNULL)


def test_a_killed_user_leaves_nothing(directory: Path) -> None:
    process, _ = _user(directory)
    with process:
        assert len(_processes_of(directory)) >= 2
        process.kill()
    wait_until(lambda: not _processes_of(directory), "keeper and server to end", timeout=5)


def test_data_is_kept_and_the_next_server_is_blessed(directory: Path) -> None:
    with Hub(directory) as hub, _client(hub) as client:
        assert hub.mark_clean
        client.set("brimful:{run:r}:shards", "x")
    with Hub(directory) as hub, _client(hub) as client:
        assert hub.mark_clean
        assert client.get("brimful:{run:r}:shards") == b"x"


def test_consumed_messages_leave_the_disk(directory: Path) -> None:
    with Hub(directory) as hub, _client(hub) as client:
        client.lpush("batch", "the prompt")
        client.rpop("batch")
        client.set("brimful:{run:r}:shards", "x")
    held = b"".join(path.read_bytes() for path in directory.rglob("appendonlydir/*"))
    assert b"run:r" in held
    assert b"the prompt" not in held


@pytest.mark.parametrize(
    ("age_s", "limits", "spent", "kept"),
    [(120, {}, 0, False), (10, {}, 0, True), (120, {"slots": 4}, 0, True), (120, {}, 7, True)],
    ids=["nothing", "a start in the window", "a limit set by hand", "tokens spent"],
)
def test_what_is_of_no_value_is_removed(
    directory: Path, age_s: int, limits: dict[str, int], spent: int, kept: bool
) -> None:
    with Hub(directory) as hub, _client(hub) as client:
        keys = admission_keys("0123456789abcdef")
        client.sadd("_kombu.binding.batch", "x")
        client.hset(keys["state"], mapping={"epoch": "e", "spent": spent})
        client.hset(keys["defaults"], mapping={"window_ms": 60_000, "guard_ms": 800})
        client.hset(keys["limits"], mapping={"rev": 1, **limits})
        client.zadd(keys["starts"], {"p.1": (client.time()[0] - age_s) * 1000})
    assert (directory / "valkey").exists() == kept


def test_an_ephemeral_hub_takes_its_directory_with_it(directory: Path) -> None:
    with Hub(directory, ephemeral=True) as hub, _client(hub) as client:
        client.set("brimful:{run:r}:shards", "x")
    assert not directory.exists()


def test_a_crashed_server_is_back_on_its_port_with_its_data(directory: Path) -> None:
    with Hub(directory) as hub:
        with _client(hub) as client:
            client.set("kept", "1")
            before = client.info("server")["process_id"]
        os.kill(before, signal.SIGKILL)

        def answers() -> object:
            try:
                with _client(hub) as client:
                    return client.info("server")["process_id"] != before and client.get("kept")
            except redis.RedisError:
                return None

        assert wait_until(answers, "the keeper to restart the server") == b"1"


def test_a_killed_keeper_is_replaced_and_the_port_stays(directory: Path) -> None:
    with Hub(directory) as hub:
        with _client(hub) as client:
            client.set("kept", "1")
        url = hub.url
        assert not hub.revive()
        os.kill(hub.info.keeper, signal.SIGKILL)
        assert wait_until(hub.revive, "the keeper's lock to be free")
        assert hub.url == url
        assert not hub.mark_clean  # its users remember more than it may
        with _client(hub) as client:
            assert client.get("kept") == b"1"


def test_data_that_cannot_be_read_is_moved_aside_and_told(directory: Path) -> None:
    with Hub(directory) as hub, _client(hub) as client:
        client.set("lost", "1")
    (base,) = directory.glob("valkey/appendonlydir/*.base.rdb")
    base.write_bytes(b"REDIS0011 nonsense" * 20)
    with Hub(directory) as hub, _client(hub) as client:
        assert not client.exists("lost")
        assert not hub.mark_clean
        assert hub.forgot
        (aside,) = directory.glob("valkey-unreadable-*")
        assert str(aside) in hub.info.notice
    assert (aside / base.name).read_bytes().startswith(b"REDIS0011 nonsense")


def test_a_port_that_is_taken_is_named(directory: Path) -> None:
    with Hub(directory.parent / "other", port=free_port()) as other:
        with pytest.raises(SettingError, match=f"port {other.info.port} is taken"):
            Hub(directory, port=other.info.port).open()
        with pytest.raises(SettingError, match=f"already runs on port {other.info.port}"):
            Hub(directory.parent / "other", port=free_port()).open()
        with Hub(directory.parent / "other", port=other.info.port) as joined:
            assert joined.url == other.url


def test_no_key_in_its_processes_and_nobody_else_reads_its_files(directory: Path) -> None:
    process, url = _user(directory)
    with process:
        password = url.split(":")[2].split("@")[0]
        processes = [found for found in _processes_of(directory) if found.pid != process.pid]
        names = [found.name() for found in processes]
        seen = str([(found.environ(), found.cmdline()) for found in processes])
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (directory, *directory.rglob("*"))}
        process.kill()
    assert len(processes) == 2, names
    assert "sk-very-secret" not in seen
    assert password not in seen
    assert not {path: oct(mode) for path, mode in modes.items() if mode & 0o077}
