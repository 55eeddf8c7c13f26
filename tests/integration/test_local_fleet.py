"""A local fleet of real processes in a rehearsal: tasks, Flower, restarts, and commands that report on it."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from celery import Celery

from brimful.config import Settings
from brimful.errors import ExitCode, FleetError
from brimful.state.keys import revoked_key
from brimful.state.redis_url import sync_redis_client
from brimful_worker.local.fleet import LocalFleet
from support.commands import brimful_in_process, nothing_left
from support.waiting import wait_until

_SLOW_S = 3.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    state = tmp_path_factory.mktemp("state")
    before = set(psutil.Process().children(recursive=True))
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("BRIMFUL_", "ACS_", "OPENAI_")):
                patch.delenv(name)
        patch.setenv("ACS_API_KEY", "sk-the-real-one")
        settings = Settings.load(state_dir=state)
        options = {"latency_s": 0.05, "per_token_s": _SLOW_S / 100}
        with LocalFleet(settings, workers=2, flower=True, rehearse=True, gateway_options=options) as fleet:
            wait_until(lambda: fleet.ready_workers() == 2, "both workers to answer")
            family = set(psutil.Process().children(recursive=True)) - before
            yield fleet
            fleet.check()
    nothing_left(family)
    assert list(state.iterdir()) == []


@pytest.fixture
def app(fleet: LocalFleet) -> Iterator[Celery]:
    with Celery("stranger", broker=fleet.redis_url, backend=fleet.redis_url, set_as_current=False) as app:
        yield app


def _flower(fleet: LocalFleet, path: str, *, login: bool = True, body: Any = None) -> str:
    """GET, or POST where there is a body."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{fleet.flower_url}{path}", data)
    if login:
        assert fleet.flower_login is not None
        request.add_header("Authorization", "Basic " + base64.b64encode(":".join(fleet.flower_login).encode()).decode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(answer.read().decode())


def test_a_task_by_name_gets_a_completion(fleet: LocalFleet, app: Celery) -> None:
    completion = app.send_task("brimful.sample", args=["The sky is"], kwargs={"max_tokens": 2}).get(timeout=60)
    assert len(completion["choices"]) == 1


def test_flowers_api_enqueues_and_returns_results(fleet: LocalFleet) -> None:
    def enqueue(max_tokens: int) -> str:
        body = {"args": ["The sky is"], "kwargs": {"max_tokens": max_tokens}, "queue": "interactive"}
        return str(json.loads(_flower(fleet, "/api/task/send-task/brimful.sample", body=body))["task-id"])

    def result(id: str) -> dict[str, Any]:
        return dict(json.loads(_flower(fleet, f"/api/task/result/{id}")))

    first, slow = enqueue(2), enqueue(100)
    wait_until(lambda: result(first)["state"] == "SUCCESS", "the result")
    assert len(result(first)["result"]["choices"]) == 1
    assert len(json.loads(_flower(fleet, f"/api/task/result/{first}?timeout=5"))["result"]["choices"]) == 1
    _flower(fleet, f"/api/task/revoke/{slow}?terminate=true", body={})
    wait_until(lambda: result(slow)["state"] == "REVOKED", "the task to be revoked")
    with sync_redis_client(fleet.redis_url) as redis:
        assert redis.get(revoked_key(slow)) == "terminate"


def test_flower_asks_for_its_login_and_shows_a_running_task_without_its_prompt(fleet: LocalFleet, app: Celery) -> None:
    def workers() -> Any:
        try:
            return json.loads(_flower(fleet, "/api/workers?refresh=1"))
        except OSError:
            return {}

    wait_until(lambda: len(workers()) == 2, "Flower to know both workers")
    for path in ("/", "/tasks", "/api/tasks", "/workers"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            _flower(fleet, path, login=False)
    running = app.send_task("brimful.sample", args=["A SECRET prompt"], kwargs={"max_tokens": 100})

    def seen() -> Any:
        return json.loads(_flower(fleet, "/api/tasks")).get(running.id, {})

    wait_until(lambda: seen().get("state") == "STARTED", "Flower to see the task running")
    (worker,) = {seen()["worker"]} & set(workers())
    pages = [f"/task/{running.id}", "/api/tasks", f"/api/task/info/{running.id}", f"/worker/{worker}", "/tasks"]
    assert running.id in _flower(fleet, f"/worker/{worker}")
    for page in pages:
        assert "SECRET" not in _flower(fleet, page), page
    assert running.get(timeout=60)["choices"]
    wait_until(lambda: seen().get("state") == "SUCCESS", "Flower to see its end")
    assert running.id in _flower(fleet, f"/task/{running.id}")


def test_a_killed_worker_is_restarted(fleet: LocalFleet) -> None:
    victim = fleet.worker_pids[0]
    before = fleet.restarts
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: fleet.restarts > before, "the worker to be started again")
    assert victim not in fleet.worker_pids
    wait_until(lambda: fleet.ready_workers() == 2, "both workers to answer again")
    fleet.check()


def test_only_workers_get_a_key_and_never_the_real_one(fleet: LocalFleet) -> None:
    assert fleet.flower_login is not None
    key = fleet.settings.api_key.get_secret_value()
    for child in psutil.Process().children(recursive=True):
        if child.status() == psutil.STATUS_ZOMBIE:
            continue
        environment, words = str(child.environ()), str(child.cmdline())
        assert "sk-the-real-one" not in environment
        assert (key in environment) == (child.pid in fleet.worker_pids)
        assert key not in words
        assert fleet.flower_login[1] not in words


def test_status_and_limits_need_only_the_url(fleet: LocalFleet) -> None:
    env = {"BRIMFUL_REDIS_URL": fleet.redis_url}
    done = brimful_in_process("status", "--json", **env)
    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout)
    assert (status["tag"], status["slots"]) == (fleet.settings.key_tag, 16)
    assert {worker["pid"] for worker in status["workers"]} >= set(fleet.worker_pids)
    assert status["queues"] == {"interactive": 0, "batch": 0, "celery": 0}
    assert fleet.redis_url not in done.stdout
    text = brimful_in_process("status", **env).stdout
    assert "0/16" in text
    assert "\x1b" not in text
    shown = json.loads(brimful_in_process("limits", "set", "--slots", "5", "--json", **env).stdout)
    assert (shown["limits"]["slots"], shown["overridden"]) == (5, ["slots"])
    assert "set by hand" in brimful_in_process("limits", "show", **env).stdout
    assert json.loads(brimful_in_process("limits", "set", "--reset", "--json", **env).stdout)["limits"]["slots"] == 16
    refused = brimful_in_process("limits", "set", "--slots", "0", **env)
    assert refused.returncode == 2
    assert "slots" in refused.stderr
    assert brimful_in_process("limits", "set", **env).returncode == 2


def test_a_local_fleet_is_found_without_its_url(fleet: LocalFleet) -> None:
    done = brimful_in_process("status", "--json", BRIMFUL_STATE_DIR=str(fleet.settings.state_dir))
    assert json.loads(done.stdout)["tag"] == fleet.settings.key_tag


def test_doctor_finds_no_fault_in_a_good_fleet(fleet: LocalFleet) -> None:
    env = {"ACS_API_BASE": str(fleet.gateway_url), "ACS_API_KEY": "sk-mine", "BRIMFUL_REDIS_URL": fleet.redis_url}
    done = brimful_in_process("doctor", "--json", **env)
    found = {check["name"]: check["level"] for check in json.loads(done.stdout)["checks"]}
    assert done.returncode == 0, done.stdout
    assert "fail" not in found.values()
    assert found["provider"] == found["Redis"] == found["workers"] == found["persistence"] == "ok"
    assert "sk-mine" not in done.stdout + done.stderr


def test_a_fleet_stopped_while_it_starts_leaves_no_process(tmp_path: Path) -> None:
    before = set(psutil.Process().children(recursive=True))
    fleet = LocalFleet(Settings.load(), workers=1, rehearse=True)
    starting = threading.Thread(target=fleet.start)
    starting.start()
    wait_until(lambda: set(psutil.Process().children(recursive=True)) - before, "a first process")
    family = set(psutil.Process().children(recursive=True)) - before
    fleet.kill()
    starting.join()
    nothing_left(family | (set(psutil.Process().children(recursive=True)) - before))
    assert not list((tmp_path / "state").rglob("*.log"))
    with pytest.raises(FleetError, match="stopped before"):
        fleet.start()


def test_a_worker_that_cannot_start_ends_the_fleet_with_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles = tmp_path / "profiles.toml"
    profiles.write_text("[mine]\nslots = 4\n")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    settings = Settings.load(provider="mine", profiles=profiles)
    assert settings.profile.slots == 4

    def failed() -> FleetError | None:
        try:
            fleet.check()
        except FleetError as error:
            return error
        return None

    with LocalFleet(settings, workers=1) as fleet:
        profiles.write_text("[mine]\nslots = 'many'\n")
        error = wait_until(failed, "the fleet to give up")
    assert error.exit_code == ExitCode.USAGE
    assert "[mine] slots" in str(error)


def test_the_alias_of_the_child_module_still_starts_a_child() -> None:
    read_fd, write_fd = os.pipe()
    command = [sys.executable, "-m", "brimful_worker.local.child", str(read_fd), "gateway", "{}"]
    with subprocess.Popen(command, pass_fds=(read_fd,), stdout=subprocess.PIPE) as child:
        os.close(read_fd)
        assert child.stdout is not None
        assert child.stdout.readline().endswith(b"/v1\n")
        os.close(write_fd)  # as when its owner ends
        assert child.wait(60) == 0


def test_the_alias_of_flowers_settings_can_be_imported() -> None:
    code = "from brimful_worker.local.flowerconfig import *; print(basic_auth, format_task.__module__)"
    environment = {**os.environ, "FLOWER_BASIC_AUTH": "me:hush"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "['me:hush'] brimful_worker.local.flower.redact\n"
