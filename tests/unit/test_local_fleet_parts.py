"""Parts of the local fleet without workers: restarts, environments, redaction in Flower, the state directory."""

from __future__ import annotations

import inspect
import os
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from flower.events import EventsState
from pydantic import SecretStr

from brimful.config import Settings
from brimful.errors import SettingError
from brimful.runtime.redaction import describe
from brimful.state.embedded import HUB_FILE, read_server, running_servers, state_dir
from brimful_worker.local.flower.redact import HIDDEN, hide, hide_request
from brimful_worker.local.processes.environment import keyless_environment, worker_environment
from brimful_worker.local.processes.logs import KEPT, clear_logs
from brimful_worker.local.supervisor import GIVE_UP, RestartPolicy, wait_for_end
from support import upstream


def test_a_killed_worker_is_always_restarted_with_backoff() -> None:
    policy = RestartPolicy()
    delays = [policy.delay(-signal.SIGKILL, 1.0) for _ in range(30)]
    assert delays[0] == 0.2
    assert delays == sorted(delays, key=lambda delay: delay or 0.0)
    assert delays[-1] == 5.0


def test_a_worker_that_ran_long_is_restarted_at_once() -> None:
    policy = RestartPolicy()
    for _ in range(3):
        policy.delay(1, 1.0)
    assert policy.delay(1, 1000.0) == 0.0
    assert policy.delay(1, 1.0) == 0.2


def test_a_worker_that_keeps_failing_is_given_up() -> None:
    policy = RestartPolicy()
    delays = [policy.delay(1, 1.0) for _ in range(GIVE_UP)]
    assert None not in delays[:-1]
    assert delays[-1] is None


def test_a_worker_with_a_wrong_setting_is_given_up_at_once() -> None:
    assert RestartPolicy().delay(2, 1.0) is None


def test_the_end_of_a_process_and_a_stop_are_noticed_at_once() -> None:
    waker, woken = socket.socketpair()
    with waker, woken, subprocess.Popen(["sleep", "3600"]) as lasting, subprocess.Popen(["sleep", "3600"]) as ended:
        try:
            for end, pids in ((ended.kill, [lasting.pid, ended.pid]), (waker.close, [lasting.pid])):
                waiting = threading.Thread(target=wait_for_end, args=(pids, woken, 3600.0), daemon=True)
                waiting.start()
                end()
                waiting.join(60)
                assert not waiting.is_alive()
        finally:
            lasting.kill()
            ended.kill()


def test_where_a_process_is_not_known_to_run_nobody_waits_for_long() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    waker, woken = socket.socketpair()
    with waker, woken:
        for pids in ([None], [process.pid], [os.getpid(), None]):
            wait_for_end(pids, woken, 3600.0)


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("ACS_API_KEY", "sk-secret")
    monkeypatch.setenv("ACS_API_BASE", "http://127.0.0.1:9/v1")
    return Settings.load(slots=3, flower_password=SecretStr("hush"), state_dir=Path("here"))


def test_a_key_that_is_no_secret_removes_no_other_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of one's own takes any key, and HTTPS_PROXY or PATH may contain it."""
    monkeypatch.delenv("LOCAL_API_KEY", raising=False)
    environ = {"HTTPS_PROXY": "http://proxy:1", "OTEL_TRACES_EXPORTER": "none"}
    assert environ.items() <= worker_environment(Settings.load(provider="local"), environ).items()
    monkeypatch.setenv("LOCAL_API_KEY", "x")
    assert environ.items() <= worker_environment(Settings.load(provider="local"), environ).items()


def test_only_the_workers_environment_holds_the_key(settings: Settings) -> None:
    environ = {
        "ACS_API_KEY": "sk-secret",
        "OPENAI_API_KEY": "sk-another",
        "CURL_HEADER": "Authorization: Bearer sk-secret",
        "FLOWER_UNAUTHENTICATED_API": "true",
        "BRIMFUL_FLOWER_PASSWORD": "hush",
        "PATH": "/bin",
    }
    keyless = keyless_environment(settings, environ)
    assert not {"sk-secret", "sk-another", "hush"} & {word for value in keyless.values() for word in value.split()}
    assert "FLOWER_UNAUTHENTICATED_API" not in keyless
    assert keyless["PATH"] == "/bin"
    workers = worker_environment(settings, environ)
    assert workers["ACS_API_KEY"] == "sk-secret"
    assert [name for name, value in workers.items() if "sk-secret" in value] == ["ACS_API_KEY"]


def test_a_key_in_the_provider_s_url_is_only_in_the_workers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {
        "ACS_API_KEY": "sk-secret",
        "ACS_API_BASE": "http://127.0.0.1:9/v1?code=sk%2Fin-the-url",
        "AZURE_OPENAI_ENDPOINT": "https://host?api-version=1",
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    settings = Settings.load(provider="acs")
    keyless = keyless_environment(settings, environ)
    assert keyless["ACS_API_BASE"] == "http://127.0.0.1:9/v1"
    assert keyless["AZURE_OPENAI_ENDPOINT"] == environ["AZURE_OPENAI_ENDPOINT"]
    assert worker_environment(settings, environ)["ACS_API_BASE"] == environ["ACS_API_BASE"]


def test_flags_are_passed_to_children_as_variables(settings: Settings, tmp_path: Path) -> None:
    environment = keyless_environment(settings, {})
    assert environment["BRIMFUL_SLOTS"] == "3"
    assert environment["BRIMFUL_STATE_DIR"] == str(tmp_path / "here")
    assert "BRIMFUL_WORKERS" not in environment  # nobody set it


def test_a_placed_fleet_has_its_own_redis_url_and_key(settings: Settings) -> None:
    tag = settings.key_tag
    placed = settings.placed(redis_url="redis://x", api_base="http://mock/v1", api_key=SecretStr("made-up"))
    assert (placed.redis_url, placed.api_base, placed.slots) == ("redis://x", "http://mock/v1", 3)
    assert placed.key_tag != tag
    assert settings.placed(redis_url="redis://x").key_tag == tag
    assert settings.redis_url is None


def test_flower_shows_numbers_and_no_prompts() -> None:
    described = describe("brimful.sample", ({"prompt": ["a", "b"], "max_tokens": 8},), {})
    assert described is not None
    args, kwargs = described
    shown = {"args": args, "kwargs": kwargs, "result": "<completion, 2 choices>", "uuid": "u"}
    assert hide(shown) == shown
    shard = describe("brimful.shard", ("r-1", "r-1.2", [{}, {}]), {})
    assert shard is not None
    assert hide({"args": shard[0]}) == {"args": shard[0]}
    event = {"type": "task-received", "args": "('The secret',)", "kwargs": "{'prompt': 'x'}", "result": "text"}
    assert hide(event) == {"type": "task-received", "args": HIDDEN, "kwargs": HIDDEN, "result": HIDDEN}
    assert hide_request({"eta": 1, "request": {"args": ["The secret"]}}) == {"eta": 1, "request": {"args": HIDDEN}}


def test_the_private_parts_of_flower_are_unchanged() -> None:
    """``flower/redact.py`` patches them as they are in Flower 2.2: look there if this fails."""
    assert list(inspect.signature(EventsState.event).parameters) == ["self", "event"]
    upstream.check(
        "flower.inspector:Inspector._on_update",
        "108df4adc17d",
        read_in="flower 2.2.0",
        used_by="brimful_worker.local.flower.redact",
    )


def test_state_goes_to_the_configured_directory_or_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert state_dir(tmp_path / "mine") == tmp_path / "mine"
    assert state_dir() == tmp_path / "state" / "brimful"
    assert state_dir().stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match="BRIMFUL_STATE_DIR"):
        state_dir(tmp_path / "file")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert state_dir().parent == tmp_path  # a home that cannot be written to: the temporary directory


def test_a_server_file_without_content_is_ignored(tmp_path: Path) -> None:
    for content in ("", "[]", '{"port": 1}', "\x00"):
        (tmp_path / HUB_FILE).write_text(content)
        assert read_server(tmp_path) is None
    assert running_servers(tmp_path) == {}


def test_logs_of_killed_fleets_are_deleted(tmp_path: Path) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    gone, alive, kept = (tmp_path / f"{pid}-ab" for pid in (process.pid, os.getpid(), 1 << 22))
    for directory in (gone, alive, kept):
        directory.mkdir()
        (directory / "worker-1.log").touch()
    (kept / KEPT).touch()
    clear_logs(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([alive.name, kept.name])
