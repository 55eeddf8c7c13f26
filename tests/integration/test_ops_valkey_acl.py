"""ops/valkey.acl on a real Valkey: a whole fleet works with it, and would not with any right less."""

from __future__ import annotations

import sys
import urllib.request
from pathlib import Path

import redis

from brimful_worker.local.server.valkey import Valkey, free_port
from support.commands import brimful, command, environment, write_prompts
from support.gateways import gateway_process
from support.pairings import RIGHTS
from support.pool_worker import Background
from support.waiting import wait_until

OPS = Path(__file__).parents[2] / "ops"
ACL = (OPS / "valkey.acl").read_text("utf-8")


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def allowed(client: redis.Redis, rights: list[str]) -> set[str]:
    """The commands that these rights allow."""
    found: set[str] = set()
    for right in rights:
        name = right.removeprefix("+")
        found |= set(client.acl_cat(name[1:])) if name.startswith("@") else {name}
    return found


def used_by(client: redis.Redis) -> set[str]:
    """The commands that the fleet called, such as ``get`` and ``client|setinfo``."""
    names = {name.removeprefix("cmdstat_") for name in client.info("commandstats")}
    return {name for name in names if not name.startswith(("acl|", "config|"))}  # this test's own


def test_a_fleet_works_with_these_rights_and_with_none_less(tmp_path: Path) -> None:
    acl = tmp_path / "users.acl"
    acl.write_text(ACL.replace("FLEET_PASSWORD", "one").replace("ADMIN_PASSWORD", "two"), "utf-8")
    with (
        Valkey(tmp_path / "valkey", appendonly=True, password="unused") as valkey,
        redis.Redis(port=valkey.port, password="unused", decode_responses=True) as client,
        gateway_process("--latency", "0.02") as gateway,
    ):
        for line in acl.read_text("utf-8").splitlines()[1:]:
            _, name, *rules = line.split()
            client.execute_command("ACL", "SETUSER", name, "reset", *rules)
        client.config_resetstat()
        where = {"BRIMFUL_REDIS_URL": f"redis://fleet:one@127.0.0.1:{valkey.port}/0"}
        env = {"ACS_API_BASE": gateway.url, "ACS_API_KEY": "sk-acl", **where}
        port, door = free_port(), free_port()
        flower = [sys.executable, "-m", "celery", "-A", "brimful", "flower", f"--port={port}"]
        flower.append(f"--conf={OPS / 'flower' / 'flowerconfig.py'}")
        with (
            Background(command("worker", "--name", "one@test"), environment(**env)) as worker,
            Background(flower, environment(BRIMFUL_FLOWER_PASSWORD="hush", **where)),
            Background(command("serve", "--port", str(door)), environment(**env)),
        ):
            wait_until(lambda: "one@test ready." in worker.output, "the worker", 60)
            run = brimful("run", write_prompts(tmp_path / "p.jsonl", 5), "-o", tmp_path / "o.jsonl", **env)
            assert run.returncode == 0, run.stderr
            for arguments in (("status",), ("limits", "set", "--slots", "8"), ("runs", "list")):
                done = brimful(*arguments, **where)
                assert done.returncode == 0, done.stderr
            wait_until(lambda: answers(f"http://127.0.0.1:{port}/metrics"), "Flower", 60)
            wait_until(lambda: answers(f"http://127.0.0.1:{door}/healthz"), "the front door", 60)
        assert [entry["object"] for entry in client.acl_log() if entry["username"] == "fleet"] == []
        used = used_by(client)
        rights = [word for word in RIGHTS.split() if word.startswith("+")]
        assert used <= allowed(client, rights)
        for right in rights:
            less = allowed(client, [other for other in rights if other != right])
            assert used - less, f"{right} is not needed"


def test_the_file_closes_the_user_without_a_password_and_has_the_documented_rights() -> None:
    default, fleet, _ = ACL.splitlines()
    assert default == "user default off"
    assert fleet == f"user fleet on >FLEET_PASSWORD {RIGHTS}"
