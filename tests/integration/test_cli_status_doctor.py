"""``status``, ``limits`` and ``doctor`` when something is missing or wrong. (On a good fleet: test_local_fleet.)"""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from brimful.addresses import FleetAddress
from brimful.config import Settings
from brimful.doctor import Check, Level
from brimful.doctor.fleet import dead_letter_checks, limit_checks
from brimful.doctor.provider import provider_checks
from brimful.doctor.server import server_checks
from brimful.doctor.watching import watching_checks
from brimful.errors import ExitCode, RedisUnreachable, SettingError, UsageError
from brimful.names import QUEUES
from brimful.state.broker_queues import read_queues
from brimful.state.dead_letters import MOST, TTL_S, DeadLetter, add
from brimful.state.keys import DEAD_LETTERS, FLEETS, TAGS, admission_keys, health_key
from brimful.state.probes import check_provider, connect
from brimful.state.provider_health import LastAnswer, ProviderState, health_fields
from brimful.state.redis_url import celery_settings, without_password
from brimful.state.target import RedisTarget, find_redis, find_tag
from brimful_worker.local.server.valkey import Valkey, free_port
from support.commands import brimful_in_process
from support.waiting import wait_until

KEY = "sk-canary-d0c7"


@contextmanager
def _provider(status: int, headers: dict[str, str] | None = None) -> Iterator[tuple[str, list[dict[str, str]]]]:
    seen: list[dict[str, str]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append({"path": self.path, "authorization": self.headers.get("Authorization", "")})
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1", seen
        finally:
            server.shutdown()
            thread.join()


def _look(monkeypatch: pytest.MonkeyPatch, base: str, key: str = KEY) -> list[Check]:
    monkeypatch.setenv("ACS_API_BASE", base)
    monkeypatch.setenv("ACS_API_KEY", key)
    checks = list(provider_checks(Settings.load(), client_only=False))
    assert KEY not in str(checks)
    return checks


@pytest.mark.parametrize(
    ("status", "level", "said"),
    [
        (200, Level.OK, "accepted"),
        (401, Level.FAIL, "refused"),
        (403, Level.FAIL, "refused"),
        (404, Level.NOTE, "could not be checked"),
        (429, Level.OK, "used up"),
        (503, Level.WARN, "503"),
    ],
)
def test_the_provider_check_by_status(monkeypatch: pytest.MonkeyPatch, status: int, level: Level, said: str) -> None:
    with _provider(status) as (base, seen):
        (check,) = _look(monkeypatch, base)
    assert (check.level, said in check.said) == (level, True), check
    assert seen == [{"path": "/v1/models", "authorization": f"Bearer {KEY}"}]


def test_the_key_is_not_sent_to_a_redirect(monkeypatch: pytest.MonkeyPatch) -> None:
    with _provider(200) as (elsewhere, seen), _provider(302, {"Location": elsewhere}) as (base, _):
        (check,) = _look(monkeypatch, base)
    assert check.level is Level.FAIL
    assert seen == []


def test_a_provider_that_does_not_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    (check,) = _look(monkeypatch, f"http://user:{KEY}@127.0.0.1:{free_port()}/v1")
    assert check.level is Level.FAIL
    assert "refused" in check.said


def test_a_key_that_no_header_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    (check,) = _look(monkeypatch, "http://127.0.0.1:9/v1", "sk with spaces")
    assert (check.name, check.level) == ("API key", Level.FAIL)


def test_a_client_needs_no_key() -> None:
    assert {check.level for check in provider_checks(Settings.load(), client_only=True)} == {Level.NOTE}
    assert {check.level for check in provider_checks(Settings.load(), client_only=False)} == {Level.FAIL}


def test_a_server_without_persistence_that_evicts_is_reported(valkey: Valkey) -> None:
    target = RedisTarget(valkey.url)
    with connect(target.url) as client:
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", "allkeys-lru")
        found = {check.name: check for check in server_checks(target, client)}
        assert found["Redis"].level is Level.OK
        assert found["persistence"].level is Level.WARN
        assert "appendonly yes" in found["persistence"].todo
        assert found["memory"].level is Level.FAIL
        assert "noeviction" in found["memory"].todo
        assert found["clock"].level is Level.OK


def test_a_policy_that_would_evict_is_reported_before_there_is_a_limit(valkey: Valkey) -> None:
    target = RedisTarget(valkey.url)
    with connect(target.url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        found = {check.name: check for check in server_checks(target, client)}
    assert (found["memory"].level, "once a maxmemory is set" in found["memory"].said) == (Level.WARN, True)


def test_a_server_too_far_away_for_the_lease_is_reported(valkey: Valkey) -> None:
    target = RedisTarget(valkey.url)
    with connect(target.url) as client:
        found = {check.name: check for check in server_checks(target, client, lease_s=1e-6)}
    assert found["Redis"].level is Level.FAIL
    assert "leases of 1e-06 s allow a quarter of that" in found["Redis"].said
    assert "BRIMFUL_LEASE_S" in found["Redis"].todo


def test_a_primary_that_takes_writes_without_its_replicas_is_reported(valkey: Valkey, tmp_path: Path) -> None:
    target = RedisTarget(valkey.url)
    with Valkey(tmp_path / "replica") as second, connect(second.url) as replica, connect(target.url) as client:
        assert "replicas" not in {check.name for check in server_checks(target, client)}
        replica.replicaof("127.0.0.1", valkey.port)
        wait_until(lambda: client.info("replication")["connected_slaves"] == 1, "the replica is attached")
        found = {check.name: check for check in server_checks(target, client)}
        assert found["replicas"].level is Level.WARN
        assert "min-replicas-to-write 1" in found["replicas"].todo
        client.config_set("min-replicas-to-write", 1)
        found = {check.name: check for check in server_checks(target, client)}
        assert found["replicas"].level is Level.OK
        replica.replicaof("NO", "ONE")


def test_without_the_right_to_use_info_the_other_checks_are_made(valkey: Valkey) -> None:
    with redis.Redis.from_url(valkey.url) as client:
        client.execute_command("ACL", "SETUSER", "fleet", "on", ">x", "~*", "&*", "+@all", "-info")
    done = brimful_in_process("doctor", "--json", BRIMFUL_REDIS_URL=valkey.url.replace("redis://", "redis://fleet:x@"))
    found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert found["Redis"]["level"] == "fail"
    assert "may not use INFO" in found["Redis"]["said"]
    assert {"clock", "limits", "workers"} <= found.keys()


def _worker_of(client: redis.Redis, tag: str, **said: str) -> None:
    """As if a worker of this key ran."""
    keys, (seconds, _) = admission_keys(tag), client.time()
    client.zadd(TAGS, {tag: seconds})
    client.hset(keys["state"], mapping={"epoch": "e"})
    client.hset(keys["defaults"], mapping={"slots": 16, "starts": 600, "window_ms": 60_000})
    process = f"p{client.zcard(keys['heard'])}"
    client.zadd(keys["heard"], {process: seconds * 1000})
    client.hset(keys["workers"], process, json.dumps({"name": process, **said}))


def test_status_only_names_a_key_that_nothing_uses(valkey: Valkey) -> None:
    with connect(valkey.url) as client:
        _worker_of(client, "aaaa")
        _worker_of(client, "bbbb")
        shown = brimful_in_process("status", BRIMFUL_REDIS_URL=valkey.url).stdout
        assert ("key aaaa" in shown, "key bbbb" in shown, "not in use" in shown) == (True, True, False)
        client.zadd(admission_keys("bbbb")["heard"], {"p0": (client.time()[0] - 60) * 1000})
        shown = brimful_in_process("status", BRIMFUL_REDIS_URL=valkey.url).stdout
        assert ("key aaaa" in shown, "key bbbb" in shown) == (True, False)
        assert shown.endswith("\n\nnot in use now: bbbb (--tag shows one)\n")
        assert "key bbbb" in brimful_in_process("status", "--tag", "b", BRIMFUL_REDIS_URL=valkey.url).stdout
        client.hset(FLEETS, "other", "bbbb")
        assert "key bbbb" in brimful_in_process("status", BRIMFUL_REDIS_URL=valkey.url).stdout, "its workers are missed"


def test_status_begins_with_the_fleet_that_is_named(valkey: Valkey) -> None:
    with connect(valkey.url) as client:
        for tag, fleet in (("aaaa", ""), ("bbbb", "evals"), ("cccc", "third")):
            _worker_of(client, tag)
            client.hset(FLEETS, fleet, tag)
    for fleet, first in (("", "aaaa"), ("evals", "bbbb"), ("third", "cccc")):
        done = brimful_in_process("status", "--json", BRIMFUL_REDIS_URL=valkey.url, BRIMFUL_FLEET=fleet)
        shown = json.loads(done.stdout)
        assert (shown["tag"], shown["keys"][0]["tag"], len(shown["keys"])) == (first, first, 3)
    done = brimful_in_process("status", "--json", BRIMFUL_REDIS_URL=valkey.url, BRIMFUL_FLEET="new")
    assert len(json.loads(done.stdout)["keys"]) == 3


def test_two_keys_in_one_fleet_are_reported(valkey: Valkey) -> None:
    settings = Settings.load()
    target = RedisTarget(valkey.url)
    with connect(valkey.url) as client:
        _worker_of(client, "aaaa")
        assert "keys" not in {check.name for check in limit_checks(target, client, settings)}
        _worker_of(client, "bbbb")
        found = {check.name: check for check in limit_checks(target, client, settings)}
    assert found["keys"].level is Level.FAIL
    assert "aaaa" in found["keys"].said
    assert "bbbb" in found["keys"].said


def test_workers_with_another_key_than_this_process_are_reported(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACS_API_KEY", KEY)
    with connect(valkey.url) as client:
        _worker_of(client, "aaaa")
        found = {check.name: check for check in limit_checks(RedisTarget(valkey.url), client, Settings.load())}
    assert found["keys"].level is Level.FAIL
    assert "BRIMFUL_FLEET" in found["keys"].todo


def test_versions_and_the_providers_last_answer_are_reported(valkey: Valkey) -> None:
    refused = {ProviderState.KEY_REFUSED: LastAnswer(2.0, 1.0, 401, "HTTP 401: no")}
    with connect(valkey.url) as client:
        _worker_of(client, "aaaa", version="0.1.0")
        _worker_of(client, "aaaa")
        client.hset(health_key("aaaa"), mapping=health_fields(refused))
        found = {check.name: check for check in limit_checks(RedisTarget(valkey.url), client, Settings.load())}
    assert (found["worker versions"].level, found["worker versions"].said[-8:]) == (Level.WARN, "0.1.0, ?")
    assert (found["provider's answers"].level, "HTTP 401" in found["provider's answers"].said) == (Level.FAIL, True)


@contextmanager
def _pages(pages: dict[str, str]) -> Iterator[str]:
    """A server with these pages: path → text."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = pages.get(self.path.partition("?")[0])
            self.send_response(404 if text is None else 200)
            self.end_headers()
            self.wfile.write((text or "").encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_flower_prometheus_and_metrics_are_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    up = {"labels": {"job": "brimful"}, "health": "up", "lastError": ""}
    down = {"labels": {"job": "brimful"}, "health": "down", "lastError": "connection refused"}
    rule = {"name": "BrimfulKeyRefused", "alerts": []}

    def levels(targets: list[Any], rules: list[Any]) -> dict[str, Level]:
        pages = {
            "/healthcheck": "OK",
            "/healthz": "ok",
            "/api/v1/targets": json.dumps({"data": {"activeTargets": targets}}),
            "/api/v1/rules": json.dumps({"data": {"groups": [{"rules": rules}]}}),
        }
        with _pages(pages) as url:
            settings = Settings.load(metrics_port=int(url.rpartition(":")[2]))
            return {check.name: check.level for check in watching_checks(settings, url, url)}

    assert set(levels([up], [rule]).values()) == {Level.OK}
    assert levels([up, down], [rule])["Prometheus"] is Level.WARN
    assert levels([], [])["Prometheus"] is levels([], [])["alerts"] is Level.WARN
    assert levels([up], [{**rule, "alerts": [{}]}])["alerts"] is Level.NOTE
    nobody = f"http://127.0.0.1:{free_port()}"
    found = list(watching_checks(Settings.load(flower_port=free_port(), metrics_port=free_port()), None, nobody))
    assert [(check.name, check.level) for check in found] == [
        ("metrics", Level.WARN),
        ("Flower", Level.WARN),
        ("Prometheus", Level.WARN),
    ]
    assert list(watching_checks(Settings.load(), None, None)) == []
    with_login = nobody.replace("http://", "http://u:hush@")
    found = list(watching_checks(Settings.load(), with_login, with_login))
    assert len(found) == 2
    assert "hush" not in str(found)


def test_doctor_names_what_is_missing() -> None:
    done = brimful_in_process("doctor")
    assert done.returncode == ExitCode.USAGE
    assert "ACS_API_BASE" in done.stdout
    assert "brimful up" in done.stdout
    assert "\x1b" not in done.stdout


def test_doctor_reports_that_no_worker_answers(valkey: Valkey) -> None:
    with _provider(200) as (base, _):
        env = {"ACS_API_BASE": base, "ACS_API_KEY": KEY, "BRIMFUL_REDIS_URL": valkey.url}
        with redis.Redis.from_url(valkey.url) as client:
            client.lpush("batch", "a task")
        done = brimful_in_process("doctor", "--json", **env)
    assert done.returncode == ExitCode.USAGE
    found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert found["workers"]["level"] == "fail"
    assert "1 task waiting" in found["workers"]["said"]
    assert KEY not in done.stdout + done.stderr


@pytest.mark.parametrize("command", [("status",), ("limits", "show"), ("limits", "set", "--slots", "3")])
def test_an_unreachable_redis_is_named_without_its_password(command: tuple[str, ...]) -> None:
    port = free_port()
    done = brimful_in_process(*command, BRIMFUL_REDIS_URL=f"redis://me:hush@127.0.0.1:{port}/0")
    assert done.returncode == ExitCode.USAGE
    assert f"127.0.0.1:{port}" in done.stderr
    assert "hush" not in done.stderr
    assert "Traceback" not in done.stderr


def test_without_url_and_fleet_no_redis_is_guessed() -> None:
    with pytest.raises(UsageError, match="brimful up"):
        find_redis(Settings.load())


def test_a_wrong_password_is_reported_without_it(valkey: Valkey) -> None:
    with pytest.raises(RedisUnreachable) as caught:
        connect(valkey.url.replace("redis://", "redis://me:hush@"))
    assert "hush" not in str(caught.value)


def test_which_key_a_command_uses(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    target, settings = RedisTarget(valkey.url), Settings.load()
    with connect(target.url) as client:
        with pytest.raises(UsageError, match="no worker has ever used"):
            find_tag(target, client, settings)
        client.zadd(TAGS, {"aaaa": 1, "abbb": 2})
        with pytest.raises(UsageError, match="abbb, aaaa"):
            find_tag(target, client, settings)
        assert find_tag(target, client, settings, "ab") == "abbb"
        for wanted in ("a", "x"):
            with pytest.raises(UsageError, match="--tag"):
                find_tag(target, client, settings, wanted)
        monkeypatch.setenv("ACS_API_KEY", KEY)
        mine = Settings.load()
        client.zadd(TAGS, {mine.key_tag: 3})
        assert find_tag(target, client, mine) == mine.key_tag
        client.config_resetstat()
        done = brimful_in_process("status", "--json", BRIMFUL_REDIS_URL=valkey.url)
        assert len(json.loads(done.stdout)["keys"]) == 3
        read: Any = client.info("commandstats")
        assert read["cmdstat_zrevrange"]["calls"] == 1, "the tags are read once"


def test_queues_are_counted_over_all_priorities(valkey: Valkey) -> None:
    from celery import Celery

    with Celery("x", set_as_current=False) as app:
        app.conf.update(celery_settings(FleetAddress(valkey.url), 15))
        for queue in QUEUES:
            for priority in (0, 3, 9):
                app.send_task("brimful.sample", queue=queue, priority=priority)
    with connect(valkey.url) as client:
        assert read_queues(client, FleetAddress(valkey.url)).lengths == dict.fromkeys(QUEUES, 3)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:hush@host:1/0", "redis://host:1/0"),
        ("rediss://me:hush@host", "rediss://host:6379/0"),
        ("unix://:hush@/run/redis.sock?db=1", "unix:///run/redis.sock?db=1"),
        ("sentinel://:hush@a:1;sentinel://:hush@b:2/0?master=m", "sentinel://a:1;b:2/0?master=m"),
        ("redis://host?password=hush", "redis://host:6379/0"),
        ("redis://:hush@host?x=1", "redis://…"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_a_provider_that_does_not_listen_is_named_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{port}/v1")
    monkeypatch.setenv("ACS_API_KEY", KEY)
    with pytest.raises(SettingError, match=rf"127\.0\.0\.1:{port} \(Connection refused\): check OPENAI_BASE_URL"):
        check_provider(Settings.load())
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    check_provider(Settings.load())  # only the proxy knows


def test_doctor_reports_dead_letters(valkey: Valkey) -> None:
    with connect(valkey.url) as client:
        assert not list(dead_letter_checks(client))
        for number in range(MOST + 2):
            letter = DeadLetter(f"reason {number}", "batch", time.time() - 7200, "w1", headers={"origin": "'gen1@h'"})
            add(client, letter)
        (check,) = dead_letter_checks(client)
        assert 0 < client.ttl(DEAD_LETTERS) <= TTL_S
    assert check.level is Level.WARN
    assert check.said.startswith(
        f"{MOST:,} messages could not be run; the last: 2 h ago, queue batch: reason {MOST + 1}; "
    )
    assert DEAD_LETTERS in check.todo
