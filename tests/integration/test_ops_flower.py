"""Flower with the shipped configuration: its login, its metrics, and its history across restarts."""

from __future__ import annotations

import base64
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import redis

from brimful.names import QUEUES
from brimful.state.status import known_tags
from brimful_worker.local.server.valkey import Valkey, free_port
from support.commands import command, environment
from support.fleets import declare_new
from support.gateways import gateway_process
from support.pool_worker import Background, client
from support.waiting import wait_until

CONFIG = Path(__file__).parents[2] / "ops" / "flower" / "flowerconfig.py"
LOGIN, TOKEN = "brimful:hush", "t0ken"


def _ask(url: str, authorization: str = "", method: str = "GET") -> tuple[int, Mapping[str, str], str]:
    headers = {"Authorization": authorization} if authorization else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers, method=method), timeout=60) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode()
    except OSError:
        return 0, {}, ""


def test_the_login_is_asked_for_and_the_history_is_kept(valkey: Valkey, tmp_path: Path) -> None:
    port = free_port()
    url, basic = f"http://127.0.0.1:{port}", f"Basic {base64.b64encode(LOGIN.encode()).decode()}"
    arguments = [sys.executable, "-m", "celery", "-A", "brimful", "flower", f"--conf={CONFIG}", f"--port={port}"]
    env = environment(
        BRIMFUL_REDIS_URL=valkey.url,
        BRIMFUL_FLOWER_PASSWORD="hush",
        BRIMFUL_FLOWER_DB=str(tmp_path / "history"),
        BRIMFUL_METRICS_TOKEN=TOKEN,
        BRIMFUL_LOG_FORMAT="json",
    )

    def known(id: str) -> bool:
        status, _, text = _ask(f"{url}/api/task/info/{id}", basic)
        return status == 200 and json.loads(text)["state"] == "SUCCESS"

    with gateway_process("--latency", "0") as gateway, client(valkey.url) as service:
        declare_new(valkey, "sk-f")
        working = environment(ACS_API_BASE=gateway.url, ACS_API_KEY="sk-f", BRIMFUL_REDIS_URL=valkey.url)
        with Background(command("worker", "--name", "one@test"), working).ready():
            with Background(arguments, env) as flower:
                wait_until(lambda: _ask(f"{url}/healthcheck")[0] == 200, "Flower", 60)
                for path, method in (("/api/workers", "GET"), ("/api/task/revoke/x?terminate=true", "POST")):
                    status, headers, text = _ask(url + path, method=method)
                    assert (status, headers["WWW-Authenticate"]) == (401, 'Basic realm="flower"')
                    assert text == "log in first: reload the page"
                assert _ask(f"{url}/api/workers", basic)[0] == 200
                assert [_ask(f"{url}/metrics", given)[0] for given in ("", f"Bearer {TOKEN}")] == [401, 200]
                measured = _ask(f"{url}/metrics", f"Bearer {TOKEN}")[2]
                with redis.Redis.from_url(valkey.url, decode_responses=True) as server:
                    [tag] = known_tags(server)
                for queue in QUEUES:
                    assert f'brimful_queue_messages{{key="{tag}",queue="{queue}"}} 0.0' in measured
                assert "flower_worker_online" in measured
                wait_until(lambda: "one@test" in _ask(f"{url}/api/workers", basic)[2], "the worker in Flower", 60)
                asked = service.send_task("brimful.sample", ("a prompt",), {"max_tokens": 2})
                asked.get(timeout=60)
                wait_until(lambda: known(asked.id), "the task in Flower")
                assert flower.stop() == 0
            with Background(arguments, env) as flower:
                wait_until(lambda: known(asked.id), "the task in the next Flower", 60)
                assert flower.stop() == 0
                logged = [json.loads(line) for line in flower.output.splitlines()]
    assert {one["process"].partition("@")[0] for one in logged} == {"flower"}
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("history*"))
    assert stored
    assert b"a prompt" not in stored
