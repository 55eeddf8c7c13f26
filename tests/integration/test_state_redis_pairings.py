"""A worker, a run, a service and the commands over each kind of Redis URL: one URL means one server to all of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from brimful_worker.local.server.valkey import Valkey, free_port
from support.chaos import LONG
from support.commands import brimful, brimful_in_process, command, environment, write_prompts
from support.fleets import declare_new
from support.gateways import GatewayProcess, gateway_process
from support.pairings import PAIRINGS, PASSWORD, reached_by, refused_commands
from support.pool_worker import Background
from support.tls import certificate_in, tls_in_front_of
from support.waiting import wait_until

KEY = "sk-pairing"
SHORT = ("client_certificate", "sentinel")
"""In `make test`, each with a user of few rights. `make chaos` takes all, and `make compat` the two that
test_pool_worker_process has in a quicker form."""
QUICKER = ("password", "unix")
CLIENT = "import brimful; print(len(brimful.sample.delay('hi', max_tokens=2).get(timeout=60)['choices']))"


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayProcess]:
    with gateway_process("--latency", "0.05") as gateway:
        yield gateway


@pytest.mark.chaos
@pytest.mark.parametrize(
    "pairing", PAIRINGS[1:] if LONG else [*SHORT, *(pytest.param(name, marks=pytest.mark.compat) for name in QUICKER)]
)
def test_a_whole_fleet(pairing: str, tmp_path: Path, gateway: GatewayProcess) -> None:
    out = tmp_path / "out.jsonl"
    with reached_by(pairing, tmp_path) as (where, valkey):
        env = {"ACS_API_BASE": gateway.url, "ACS_API_KEY": KEY, **where}
        declare_new(valkey, KEY, db=5)
        with Background(command("worker", "--name", "one@test"), environment(**env)) as worker:
            wait_until(lambda: "one@test ready." in worker.output, "the worker", 60)
            run = brimful("run", write_prompts(tmp_path / "p.jsonl", 5), "-o", out, "--max-tokens", "4", **env)
            assert run.returncode == 0, run.stderr
            service = subprocess.run(
                [sys.executable, "-c", CLIENT], env=environment(**where), capture_output=True, text=True, timeout=90
            )
            assert service.stdout == "1\n", service.stderr
            status = brimful_in_process("status", "--json", **where)
            assert len(json.loads(status.stdout)["workers"]) == 1, status.stderr
            doctor = brimful_in_process("doctor", **env)
            assert doctor.returncode == 0, doctor.stdout
            assert worker.stop() == 0
        assert refused_commands(valkey) == []
        texts = [worker.output, run.stderr, service.stderr, status.stdout + status.stderr, doctor.stdout]
        for text in texts:
            assert PASSWORD not in text
            assert "Traceback" not in text
            assert "nsecure" not in text


def test_an_untrusted_certificate_and_a_wrong_password_say_so(valkey: Valkey, tmp_path: Path) -> None:
    certificate, context = certificate_in(tmp_path)
    with tls_in_front_of(valkey.port, context) as port:
        for name in ("status", "doctor"):
            seen = brimful_in_process(name, BRIMFUL_REDIS_URL=f"rediss://127.0.0.1:{port}/0")
            assert seen.returncode == 2
            assert "certificate is not trusted" in seen.stdout + seen.stderr
            assert "BRIMFUL_REDIS_CA_FILE" in seen.stdout + seen.stderr
            assert "start it" not in seen.stdout
        elsewhere = brimful_in_process(
            "status", BRIMFUL_REDIS_URL=f"rediss://localhost:{port}/0?ssl_ca_certs={certificate}"
        )
        assert "its certificate is for another name" in elsewhere.stderr
        plain = brimful_in_process("status", BRIMFUL_REDIS_URL=f"rediss://127.0.0.1:{valkey.port}/0")
        assert "that the server speaks TLS there" in plain.stderr
        missing = brimful_in_process("status", BRIMFUL_REDIS_URL=f"redis://127.0.0.1:{port}/0")
        assert "does not ask for TLS there (then use rediss://)" in missing.stderr
    wrong = brimful_in_process("doctor", BRIMFUL_REDIS_URL=f"redis://someone:hush@127.0.0.1:{valkey.port}/0")
    assert "refuses this user or password" in wrong.stdout
    assert "hush" not in wrong.stdout
    assert "start it" not in wrong.stdout


@pytest.mark.parametrize("name", ["worker", "run", "status", "doctor"])
def test_a_cluster_is_refused_at_the_start_in_one_line(name: str, tmp_path: Path) -> None:
    with Valkey(tmp_path / "valkey", options=("cluster-enabled yes", f"cluster-port {free_port()}")) as cluster:
        arguments = [name]
        if name == "run":
            arguments += [str(write_prompts(tmp_path / "p.jsonl", 1)), "-o", str(tmp_path / "o.jsonl")]
        env = {"ACS_API_BASE": "http://127.0.0.1:1/v1", "ACS_API_KEY": KEY, "BRIMFUL_REDIS_URL": cluster.url}
        refused = (brimful if name == "worker" else brimful_in_process)(*arguments, **env)
    assert refused.returncode == 2
    said = refused.stdout if name == "doctor" else refused.stderr
    assert "is a node of a Redis Cluster" in said
    assert len(refused.stderr.splitlines()) <= 2


def test_a_worker_that_redis_will_never_take_ends_at_once(tmp_path: Path) -> None:
    """One whose Redis is only away waits for it."""
    with Valkey(tmp_path / "valkey", password="right") as valkey:
        env = {"ACS_API_BASE": "http://127.0.0.1:1/v1", "ACS_API_KEY": KEY}
        url = f"redis://:hush@127.0.0.1:{valkey.port}/0"
        refused = brimful("worker", BRIMFUL_REDIS_URL=url, CELERY_BROKER_URL="redis://elsewhere/0", **env)
    assert refused.returncode == 2
    assert "CELERY_BROKER_URL (or -b) is not used: BRIMFUL_REDIS_URL is set" in refused.stderr
    assert "refuses this user or password" in refused.stderr
    assert "hush" not in refused.stderr
