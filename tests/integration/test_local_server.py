"""The embedded Valkey that the local runs of one key share: start, join, crash, end. With real processes."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest
import redis

from brimful.errors import FleetError, SettingError
from brimful_worker.local.server.shared import SharedValkey
from brimful_worker.local.server.valkey import Connection, Valkey, free_port
from support.waiting import wait_until

_USER = """
import sys
from pathlib import Path
from brimful_worker.local.server.shared import SharedValkey
with SharedValkey(Path(sys.argv[1])) as valkey:
    print(valkey.server.url, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "state" / "brimful" / "0123456789abcdef"
    yield directory
    wait_until(lambda: not _processes_of(directory), "the processes to end")


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
        assert process.wait(60) == 0


def _client(valkey: SharedValkey) -> redis.Redis:
    return redis.Redis.from_url(valkey.server.url, socket_timeout=5)


def test_two_users_share_one_server_and_the_last_one_ends_it(directory: Path) -> None:
    process, url = _user(directory)
    with SharedValkey(directory) as valkey:
        assert valkey.server.url == url
        _end(process)
        with _client(valkey) as client:
            assert client.ping()
    assert not _processes_of(directory)


def test_concurrent_starts_share_one_server(directory: Path) -> None:
    code = _USER.replace("sys.stdin.read()", "")
    with ExitStack() as stack:
        stack.enter_context(SharedValkey(directory.parent / "other"))  # another key's server does not matter
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


def test_a_killed_user_leaves_no_process(directory: Path) -> None:
    process, _ = _user(directory)
    with process:
        assert len(_processes_of(directory)) >= 2
        process.kill()
    wait_until(lambda: not _processes_of(directory), "keeper and server to end")


def test_data_is_kept_and_known_to_be_complete(directory: Path) -> None:
    with SharedValkey(directory) as valkey, _client(valkey) as client:
        assert valkey.memory_complete
        client.set("brimful:{run:r}:shards", "x")
    with SharedValkey(directory) as valkey, _client(valkey) as client:
        assert valkey.memory_complete
        assert client.get("brimful:{run:r}:shards") == b"x"


def test_consumed_messages_are_removed_from_the_disk(directory: Path) -> None:
    with SharedValkey(directory) as valkey, _client(valkey) as client:
        client.lpush("batch", "the prompt")
        client.rpop("batch")
        client.set("brimful:{run:r}:shards", "x")
    held = b"".join(path.read_bytes() for path in directory.rglob("appendonlydir/*"))
    assert b"run:r" in held
    assert b"the prompt" not in held


def test_an_ephemeral_server_deletes_its_directory(directory: Path) -> None:
    with SharedValkey(directory, ephemeral=True) as valkey, _client(valkey) as client:
        client.set("brimful:{run:r}:shards", "x")
    assert not directory.exists()


def test_a_crashed_server_is_restarted_on_its_port_with_its_data(directory: Path) -> None:
    with SharedValkey(directory) as valkey:
        with _client(valkey) as client:
            client.set("kept", "1")
            before = client.info("server")["process_id"]
        os.kill(before, signal.SIGKILL)

        def answers() -> object:
            try:
                with _client(valkey) as client:
                    return client.info("server")["process_id"] != before and client.get("kept")
            except redis.RedisError:
                return None

        assert wait_until(answers, "the keeper to restart the server") == b"1"


def test_a_killed_keeper_is_replaced_and_the_port_stays(directory: Path) -> None:
    with SharedValkey(directory) as valkey:
        with _client(valkey) as client:
            client.set("kept", "1")
        url = valkey.server.url
        assert not valkey.revive()
        os.kill(valkey.server.keeper, signal.SIGKILL)
        assert wait_until(valkey.revive, "the keeper's lock to be free")
        assert valkey.server.url == url
        assert not valkey.memory_complete  # its users may remember more than it does
        with _client(valkey) as client:
            assert client.get("kept") == b"1"


def test_after_a_keeper_that_ended_before_its_users_the_data_is_not_taken_for_complete(directory: Path) -> None:
    with SharedValkey(directory) as valkey:
        assert valkey.memory_complete
        os.kill(valkey.server.keeper, signal.SIGTERM)  # as the end of a session sends it to all its processes
        wait_until(lambda: not _processes_of(directory), "keeper and server to end")
        with SharedValkey(directory) as another:
            assert not another.memory_complete
            assert another.server.url == valkey.server.url


def test_after_a_killed_keeper_the_data_is_not_taken_for_complete(directory: Path) -> None:
    with SharedValkey(directory) as valkey:
        stale = (directory / "hub.json").read_bytes()
    (directory / "hub.json").write_bytes(stale)
    with SharedValkey(directory) as valkey:
        assert not valkey.memory_complete
    with SharedValkey(directory) as valkey:
        assert valkey.memory_complete


def test_the_alias_of_the_keeper_answers_in_the_format_of_every_version(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True)
    with (directory / "keeper.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        keeper = subprocess.Popen(
            [sys.executable, "-m", "brimful_worker.local.keeper", directory, str(lock.fileno()), "0"],
            pass_fds=(lock.fileno(),),
            stdout=subprocess.PIPE,
        )
    with keeper:
        assert keeper.stdout is not None
        assert json.loads(keeper.stdout.readline()) == {"ok": True, "bless": True, "forgot": False}
        assert keeper.wait(60) == 0, "nobody uses it"


def test_data_that_cannot_be_read_is_moved_aside_and_reported(directory: Path) -> None:
    with SharedValkey(directory) as valkey, _client(valkey) as client:
        client.set("lost", "1")
    (base,) = directory.glob("valkey/appendonlydir/*.base.rdb")
    base.write_bytes(b"REDIS0011 nonsense" * 20)
    with SharedValkey(directory) as valkey, _client(valkey) as client:
        assert not client.exists("lost")
        assert not valkey.memory_complete
        assert valkey.memory_lost
        (aside,) = directory.glob("valkey-unreadable-*")
        assert str(aside) in valkey.server.data_loss
    assert (aside / base.name).read_bytes().startswith(b"REDIS0011 nonsense")


def test_a_taken_port_is_named(directory: Path) -> None:
    with SharedValkey(directory.parent / "other", port=free_port()) as other:
        with pytest.raises(SettingError, match=f"port {other.server.port} is taken"):
            SharedValkey(directory, port=other.server.port).open()
        with pytest.raises(SettingError, match=f"already runs on port {other.server.port}"):
            SharedValkey(directory.parent / "other", port=free_port()).open()
        with SharedValkey(directory.parent / "other", port=other.server.port) as joined:
            assert joined.server.url == other.server.url


def test_its_processes_hold_no_key_and_its_files_are_private(directory: Path) -> None:
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


def test_a_start_returns_when_the_data_is_loaded(directory: Path) -> None:
    """A long append-only file: until it is loaded, the server refuses all that a fleet begins with."""
    server = Valkey(directory, appendonly=True, options=("key-load-delay 100",))
    with server:
        with redis.Redis(port=server.port) as client, client.pipeline(transaction=False) as pipe:
            for number in range(5_000):
                pipe.set(f"key {number}", "x")
            pipe.execute()
        server.kill()
        server.start()
        connection = Connection(server.port, None)
        assert connection.call("DBSIZE") == 5_000
        connection.close()


def test_a_port_that_another_server_takes_meanwhile_is_left_to_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        try:
            taken, free = other.server_address[1], free_port()
            ports = iter([taken, free])
            monkeypatch.setattr("brimful_worker.local.server.valkey.free_port", lambda: next(ports))
            with Valkey(directory) as server:
                assert server.port == free
            with pytest.raises(FleetError, match="Address already in use"):
                Valkey(directory, port=taken).start()
        finally:
            other.shutdown()
            thread.join()
