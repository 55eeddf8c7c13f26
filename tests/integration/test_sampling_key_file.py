"""A worker whose API key is in a file that changes."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from brimful.config import Settings
from brimful.errors import SettingError
from brimful.state.keys import FLEETS
from brimful.state.redis_url import sync_redis_client
from brimful_worker.local.processes.environment import worker_environment
from brimful_worker.local.server.valkey import Valkey
from support.commands import brimful_in_process, command, environment
from support.pool_worker import Background, client
from support.waiting import wait_until

ONE, TWO, THREE = "sk-one-31c9", "sk-two-77d0", "sk-three-0a4b"


class Provider:
    """Answers every request, and remembers its key; requests for the prompt ``held`` wait for ``release``."""

    def __init__(self) -> None:
        self.keys: list[tuple[str, str]] = []
        self.release = threading.Event()


@contextmanager
def provider() -> Iterator[tuple[Provider, str]]:
    seen = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            prompt = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["prompt"]
            seen.keys.append((prompt, self.headers["Authorization"].removeprefix("Bearer ")))
            if prompt == "held":
                seen.release.wait(60)
            body = json.dumps({"choices": [{"index": 0, "text": "x", "finish_reason": "stop"}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield seen, f"http://127.0.0.1:{server.server_address[1]}/v1"
        finally:
            seen.release.set()
            server.shutdown()
            thread.join()


def test_a_new_key_is_used_for_the_next_request_without_a_restart(valkey: Valkey, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{ONE}\n")
    with provider() as (seen, base), client(valkey.url) as service:
        env = environment(
            ACS_API_BASE=base,
            ACS_API_KEY_FILE=str(file),
            BRIMFUL_REDIS_URL=valkey.url,
            BRIMFUL_SLOTS="1",
            BRIMFUL_LEASE_S="4",  # for which the first worker of each key waits
        )

        def ask(prompt: str) -> str:
            service.send_task("brimful.sample", (prompt,), {"max_tokens": 2}).get(timeout=60)
            return dict(seen.keys)[prompt]

        with Background(command("worker", "--name", "one@test"), env).ready() as worker:
            assert ask("first") == ONE
            held = service.send_task("brimful.sample", ("held",), {"max_tokens": 2})
            wait_until(lambda: ("held", ONE) in seen.keys, "it to be on the wire")
            waiting = service.send_task("brimful.sample", ("waiting",), {"max_tokens": 2})
            file.write_text(TWO)
            worker.process.send_signal(signal.SIGHUP)
            waiting.get(timeout=60)  # the only slot of the first key is still taken
            assert dict(seen.keys)["waiting"] == TWO
            assert not held.ready()
            seen.release.set()
            held.get(timeout=60)
            assert seen.keys.count(("held", ONE)) == 1
            file.write_text("")
            wait_until(lambda: "is empty; the key in use is kept" in worker.output, "a word about it")
            assert ask("still") == TWO
            (tmp_path / "next").write_text(THREE)
            (tmp_path / "next").rename(file)
            wait_until(lambda: worker.output.count("the API key was replaced") == 2, "the file to be read again")
            assert ask("last") == THREE
            status = json.loads(brimful_in_process("status", "--json", BRIMFUL_REDIS_URL=valkey.url).stdout)
            assert [len(key["workers"]) for key in status["keys"]] == [1, 0, 0]
            with sync_redis_client(valkey.url) as redis:
                newest, before, _ = [key["tag"] for key in status["keys"]]
                registered = f"{newest} replaced={before}"
                wait_until(lambda: redis.hget(FLEETS, "") == registered, "the fleet to be the new key's")
            assert worker.stop() == 0
            assert not any(key in worker.output for key in (ONE, TWO, THREE))
            assert "Traceback" not in worker.output


def test_the_key_may_be_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "key"
    monkeypatch.setenv("ACS_API_KEY_FILE", str(file))
    with pytest.raises(SettingError, match=r"cannot read the API key from .*No such file"):
        _ = Settings.load().api_key
    file.write_text(" sk-1 \n")
    assert Settings.load().api_key.get_secret_value() == "sk-1"
    monkeypatch.setenv("ACS_API_BASE", "http://127.0.0.1:1/v1")
    child = worker_environment(Settings.load())
    assert (child["ACS_API_KEY_FILE"], child.get("ACS_API_KEY")) == (str(file), None)
    monkeypatch.setenv("ACS_API_KEY", "sk-2")
    with pytest.raises(SettingError, match="ACS_API_KEY and ACS_API_KEY_FILE are both set"):
        _ = Settings.load().api_key
