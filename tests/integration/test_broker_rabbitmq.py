"""A fleet whose broker is a real RabbitMQ (Debian's package), with Redis for everything else."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from brimful import Fleet
from brimful.addresses import FleetAddress
from brimful.celery import app_for
from brimful.errors import BrokerUnusable, FleetTaken
from brimful.state.dead_letters import read
from brimful.state.fleets import register
from brimful.state.rabbitmq.queues import read_states
from brimful.state.rabbitmq.reach import check_broker
from brimful.state.redis_url import sync_redis_client
from brimful_worker.local.server.valkey import Valkey
from brimful_worker.metrics.queues import QueueCollector
from support.commands import brimful, command, environment, records, write_prompts
from support.messages import item
from support.pool_worker import Background
from support.rabbitmq import NEEDS_RABBITMQ, PASSWORD, QUOTED, RabbitMQ
from support.strict_gateway import StrictGatewayProcess
from support.tls import certificate_in, tls_in_front_of
from support.waiting import wait_until

pytestmark = [
    pytest.mark.compat,
    pytest.mark.timeout(300),
    NEEDS_RABBITMQ,
]
KEY = "sk-rabbit-canary"
PATIENCE_S = 60.0


@dataclass
class Place:
    rabbitmq: RabbitMQ
    valkey: Valkey
    gateway: StrictGatewayProcess
    worker: Background
    env: dict[str, str]

    @property
    def address(self) -> FleetAddress:
        return FleetAddress(self.valkey.url, rabbitmq_url=self.rabbitmq.url)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("rabbitmq")
    with (
        RabbitMQ(directory / "rabbitmq") as rabbitmq,
        Valkey(directory / "valkey") as valkey,
        StrictGatewayProcess(starts=1000, window=5, latency=0.05) as gateway,
    ):
        env = {
            "BRIMFUL_BROKER_URL": rabbitmq.url,
            "BRIMFUL_REDIS_URL": valkey.url,
            "ACS_API_BASE": gateway.url,
            "ACS_API_KEY": KEY,
            "BRIMFUL_STARTS": "1000",
            "BRIMFUL_WINDOW_S": "5",
            "BRIMFUL_CONCURRENCY": "8",
        }
        log = directory / "worker.log"
        with Background(command("worker", "--name", "w1"), environment(**env), log) as worker:
            worker.ready()
            yield Place(rabbitmq, valkey, gateway, worker, env)


@pytest.fixture
def fleet(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.setenv("BRIMFUL_BROKER_URL", place.rabbitmq.url)
    monkeypatch.setenv("BRIMFUL_REDIS_URL", place.valkey.url)
    with Fleet() as fleet:
        yield fleet


def test_a_run_samples_every_line_once(place: Place, tmp_path: Path) -> None:
    prompts, out = write_prompts(tmp_path / "prompts.jsonl", 60), tmp_path / "out.jsonl"
    done = brimful("run", prompts, "-o", out, "--pack", "off", "--max-tokens", "4", "--json", **place.env)
    assert done.returncode == 0, done.stderr
    assert sorted(record["id"] for record in records(out)) == sorted(f"p{number}" for number in range(60))
    assert json.loads(done.stdout.splitlines()[-1])["succeeded"] == 60


def test_singles_maps_and_strangers(place: Place, fleet: Fleet) -> None:
    assert fleet.sample("one", max_tokens=4, timeout=PATIENCE_S)["choices"]
    assert [sampled.failure for sampled in fleet.map(["a", "b"], max_tokens=4)] == [None, None]
    with Celery("stranger", broker=place.rabbitmq.url, backend=place.valkey.url, set_as_current=False) as app:
        for queue in ("interactive", "celery", "batch"):
            sent = app.send_task("brimful.sample", ("Hi",), {"max_tokens": 4}, queue=queue, countdown=0.1)
            assert sent.get(timeout=PATIENCE_S)["choices"]


def test_a_revoked_task_ends(place: Place, fleet: Fleet) -> None:
    place.gateway.set_faults(hang=1.0)
    try:
        handle = fleet.submit("hangs", max_tokens=4)
        wait_until(lambda: place.gateway.ledger()["active"], "its request to be on the wire", PATIENCE_S)
        handle.revoke(terminate=True)
        wait_until(lambda: handle.state == "REVOKED", "its end", PATIENCE_S)
    finally:
        place.gateway.set_faults()


def test_more_wait_than_a_worker_takes_and_the_urgent_do_not_wait_behind_them(place: Place, fleet: Fleet) -> None:
    with app_for(place.address) as app:
        batch = [
            app.send_task("brimful.sample", (f"b{number}",), {"max_tokens": 4}, queue="batch") for number in range(200)
        ]
        assert fleet.sample("urgent", max_tokens=4, timeout=PATIENCE_S)["choices"]
        for sent in batch:
            assert sent.get(timeout=PATIENCE_S)["choices"]
    states = read_states(place.rabbitmq.url)
    assert {name: state.waiting for name, state in states.items()} == {"interactive": 0, "celery": 0, "batch": 0}
    assert {state.consumers for state in states.values()} == {1}


def test_a_malformed_message_is_set_aside_and_acknowledged(place: Place, fleet: Fleet) -> None:
    id = uuid.uuid4().hex
    message = item(id, task="brimful.sample", headers={"retries": "many"})
    with app_for(place.address) as app, app.connection_for_write() as connection:
        connection.Producer().publish(
            "[[], {}, {}]",
            content_type="application/json",
            content_encoding="utf-8",
            headers=message["headers"],
            correlation_id=id,
            routing_key="celery",
        )
        with sync_redis_client(place.valkey.url) as client:
            wait_until(lambda: [letter for letter in read(client, 9)[1] if letter.id == id], "the letter", PATIENCE_S)
        result = app.AsyncResult(id)
        wait_until(lambda: result.state == "FAILURE", "its failure", PATIENCE_S)
    assert fleet.sample("the worker goes on", max_tokens=4, timeout=PATIENCE_S)["choices"]


def test_status_metrics_and_doctor_know_the_broker(place: Place) -> None:
    status = brimful("status", "--json", **place.env)
    said = json.loads(status.stdout)
    assert said["queues"] == {"interactive": 0, "celery": 0, "batch": 0}
    assert said["unacked"] is None
    assert "delivered" not in brimful("status", **place.env).stdout
    doctor = brimful("doctor", "--json", **place.env)
    checks = {check["name"]: check for check in json.loads(doctor.stdout)["checks"]}
    shown = f"amqp://127.0.0.1:{place.rabbitmq.port}/of%20brimful%2F1"
    assert re.fullmatch(rf"RabbitMQ [\d.]+ at {re.escape(shown)}", checks["broker"]["said"])
    assert checks["workers"]["level"] == "ok"
    with sync_redis_client(place.valkey.url, decode_responses=False) as client:
        families = {family.name for family in QueueCollector(client, place.address).collect()}
    assert families == {"brimful_queue_messages"}


def test_doctor_warns_of_another_program_that_reads_the_queues(place: Place) -> None:
    with app_for(place.address) as app, app.connection_for_read() as connection:
        channel = connection.channel()
        channel.basic_qos(0, 1, False)
        channel.basic_consume("celery", no_ack=False, callback=lambda message: None)
        doctor = brimful("doctor", **place.env)
        channel.close()
    assert "beside the workers that answer, 1 consumer of the queue 'celery'" in doctor.stdout


def test_a_wrong_password_is_refused_with_the_way_out(place: Place) -> None:
    env = {**place.env, "BRIMFUL_BROKER_URL": place.rabbitmq.url.replace(QUOTED, "hush")}
    for arguments in (("worker",), ("status",), ("run", os.devnull, "-o", "-")):
        refused = brimful(*arguments, **env)
        assert refused.returncode == 2, refused.stderr
        assert "refuses this user" in refused.stderr, arguments
        assert "hush" not in refused.stderr


def test_a_user_who_may_not_publish_ends_the_run_with_the_reason(place: Place, tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "prompts.jsonl", 3)
    env = place.env | {"BRIMFUL_BROKER_URL": place.rabbitmq.url_of_reader}
    done = brimful("run", prompts, "-o", tmp_path / "out.jsonl", **env)
    assert done.returncode == 2, done.stderr
    assert "refuses this user" in done.stderr
    assert "'of brimful/1'" in done.stderr, "the virtual host"
    assert "'reader'" in done.stderr
    assert "BRIMFUL_BROKER_URL" in done.stderr
    assert PASSWORD not in done.stderr
    assert QUOTED not in done.stderr
    done = brimful("run", prompts, "-o", tmp_path / "out.jsonl", **place.env)
    assert done.returncode == 0, done.stderr
    assert len(records(tmp_path / "out.jsonl")) == 3, "the same command, with the right user, resumes it"


def test_who_does_not_name_rabbitmq_is_refused(place: Place) -> None:
    env = {name: value for name, value in place.env.items() if name != "BRIMFUL_BROKER_URL"}
    refused = brimful("run", os.devnull, "-o", "-", **env)
    assert refused.returncode == 2
    assert "BRIMFUL_BROKER_URL is not set, but the fleet's workers take their tasks from RabbitMQ" in refused.stderr


def test_tls_with_a_certificate_authority_of_one_s_own(place: Place, fleet: Fleet, tmp_path: Path) -> None:
    certificate, context = certificate_in(tmp_path)
    with tls_in_front_of(place.rabbitmq.port, context) as port:
        url = place.rabbitmq.url.replace("amqp://", "amqps://").replace(f":{place.rabbitmq.port}/", f":{port}/")
        assert check_broker(f"{url}?ssl_ca_certs={certificate}").startswith("RabbitMQ 3.")
        with app_for(FleetAddress(place.valkey.url, rabbitmq_url=f"{url}?ssl_ca_certs={certificate}")) as app:
            sent = app.send_task("brimful.sample", ("over TLS",), {"max_tokens": 4}, queue="batch")
            assert sent.get(timeout=PATIENCE_S)["choices"]
        with pytest.raises(BrokerUnusable, match="its certificate is not accepted"):
            check_broker(url)
        with pytest.raises(BrokerUnusable, match="its certificate is not accepted"):  # another name of the same address
            check_broker(f"{url.replace('127.0.0.1', '127.1')}?ssl_ca_certs={certificate}")


def test_another_key_may_not_take_a_fleet_whose_tasks_wait_in_rabbitmq(place: Place) -> None:
    with (
        app_for(FleetAddress(place.valkey.url, "taken", place.rabbitmq.url)) as app,
        sync_redis_client(place.valkey.url) as client,
    ):
        register(client, FleetAddress(place.valkey.url, "taken"), "first-tag")
        app.send_task("brimful.sample", ("Hi",), {"max_tokens": 4}, queue="batch")
        with pytest.raises(FleetTaken, match="1 task queued"):
            register(client, FleetAddress(place.valkey.url, "taken", place.rabbitmq.url), "second-tag")


def test_tasks_of_a_killed_worker_are_delivered_again(place: Place, fleet: Fleet, tmp_path: Path) -> None:
    env = {**place.env, "BRIMFUL_FLEET": "killed"}
    with Fleet(fleet="killed") as own:
        handle = own.submit("sampled by the second worker", max_tokens=4)
        place.gateway.set_faults(hang=1.0)
        try:
            with Background(command("worker", "--name", "k1"), environment(**env), tmp_path / "k1.log"):
                wait_until(lambda: place.gateway.ledger()["active"], "its request to be on the wire", PATIENCE_S)
        finally:  # the worker has been killed
            place.gateway.set_faults()
        with Background(command("worker", "--name", "k2"), environment(**env), tmp_path / "k2.log"):
            assert handle.get(timeout=PATIENCE_S)["choices"]


def test_no_log_has_the_key_or_a_password(place: Place) -> None:
    texts = [place.worker.output, *_memory(place)]
    for text in texts:
        assert KEY not in text
        assert PASSWORD not in text
        assert QUOTED not in text


def _memory(place: Place) -> list[str]:
    """What remote control says of the worker."""
    with app_for(place.address) as app:
        inspect: Any = app.control.inspect(timeout=2.0)
        return [json.dumps(inspect.stats(), default=str), json.dumps(inspect.conf(), default=str)]
