"""Every shipped alert fires for a real fault of a real fleet, and every query of the dashboard returns data meanwhile.

Prometheus itself evaluates the shipped rules. Only its scrape interval and the rules' ranges and ``for:`` are changed:
all are divided by ``support.prometheus.SPEED``. The dashboard's queries run as they stand, ``$key`` being "All".
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from celery import Celery
from kombu.exceptions import OperationalError

from brimful.names import SENT_AT
from brimful_worker.local.server.valkey import Valkey, free_port
from support.commands import brimful_in_process, command, environment
from support.gateways import GatewayProcess, gateway_process
from support.messages import item
from support.pool_worker import Background, client
from support.prometheus import BINARY, RULES, Prometheus, prometheus
from support.waiting import wait_until

yaml = pytest.importorskip("yaml")

FLOWER = Path(__file__).parents[2] / "ops" / "flower" / "flowerconfig.py"
DASHBOARD = Path(__file__).parents[2] / "ops" / "grafana" / "brimful.json"
SLOTS = 4
PATIENCE_S = 180


@dataclass
class Fleet:
    gateway: GatewayProcess
    valkey: Valkey
    workers: list[Background]
    flower: Background
    env: dict[str, str]

    def limit_slots(self, slots: int) -> None:
        done = brimful_in_process("limits", "set", "--slots", str(slots), **self.env)
        assert done.returncode == 0, done.stderr

    @contextlib.contextmanager
    def provider(self, faults: str) -> Iterator[None]:
        self.gateway.set_faults(faults)
        yield
        self.gateway.set_faults("")

    @contextlib.contextmanager
    def hung_requests(self, seconds: int = 40) -> Iterator[None]:
        """Requests that take long hold every slot. At the end none of them is left."""
        with self.provider(f"hang={seconds}"):
            wait_until(lambda: self.gateway.ledger()["active"] == SLOTS, "every slot at the gateway", 60)
            yield
        wait_until(lambda: self.gateway.ledger()["active"] == 0, "the last of them", 60)

    @contextlib.contextmanager
    def redis_away(self) -> Iterator[None]:
        self.valkey.kill()
        yield
        self.valkey.start()


@contextlib.contextmanager
def lost_leases(fleet: Fleet) -> Iterator[None]:
    with fleet.hung_requests(), fleet.redis_away():
        yield


@contextlib.contextmanager
def lowered_limits(fleet: Fleet) -> Iterator[None]:
    with fleet.hung_requests(25):
        fleet.limit_slots(1)
        yield
        fleet.limit_slots(SLOTS)


@contextlib.contextmanager
def flushed(fleet: Fleet) -> Iterator[None]:
    with redis.Redis.from_url(fleet.valkey.url) as server:
        server.flushall()
    yield


@contextlib.contextmanager
def malformed_message(fleet: Fleet) -> Iterator[None]:
    with redis.Redis.from_url(fleet.valkey.url) as server:
        server.lpush("batch", "{")
    yield


@contextlib.contextmanager
def stalls(fleet: Fleet) -> Iterator[None]:
    """One worker stands still for two of every three seconds, too short for its guardian."""
    over, process = threading.Event(), fleet.workers[0].process

    def stall() -> None:
        while not over.wait(1):
            process.send_signal(signal.SIGSTOP)
            over.wait(2)
            process.send_signal(signal.SIGCONT)

    thread = threading.Thread(target=stall)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def killed(fleet: Fleet, *, left: int) -> Iterator[None]:
    while len(fleet.workers) > left:
        fleet.workers.pop().stop(signal.SIGKILL)
    yield


@contextlib.contextmanager
def old_message(fleet: Fleet) -> Iterator[None]:
    """In a queue that no worker is left to take it from."""
    with redis.Redis.from_url(fleet.valkey.url) as server:
        server.rpush("interactive", json.dumps(item("old", headers={SENT_AT: time.time() - 3600})))
    yield


Fault = Callable[[Fleet], AbstractContextManager[None]]
FAULTS: dict[str, Fault] = {
    "BrimfulDeadLetters": malformed_message,
    "BrimfulThrottled": lambda fleet: fleet.provider("429=0.1:x8"),
    "BrimfulKeyRefused": lambda fleet: fleet.provider("401"),
    "BrimfulQuotaEnd": lambda fleet: fleet.provider("402"),
    "BrimfulBreakerOpen": lambda fleet: fleet.provider("500"),
    "BrimfulFailures": lambda fleet: fleet.provider("filter:0.5"),
    "BrimfulLoopStuck": stalls,
    "BrimfulNoStartsWhileWaiting": Fleet.hung_requests,
    "BrimfulOverLimits": lowered_limits,
    "BrimfulLeasesLost": lost_leases,
    "BrimfulRedisAway": Fleet.redis_away,
    "BrimfulRedisLostItsMemory": flushed,
    "BrimfulPausedForLong": lambda fleet: fleet.provider("429=60:x1"),
    "BrimfulWorkerGone": lambda fleet: killed(fleet, left=1),
    "BrimfulNoWorkers": lambda fleet: killed(fleet, left=0),
    "BrimfulOldMessages": old_message,
}
"""Alert → the fault that makes it fire, in the order of the storm."""


@pytest.mark.compat
@pytest.mark.timeout(1200)
@pytest.mark.skipif(BINARY is None, reason="no Prometheus here: `make compat` installs Debian's package prometheus")
def test_each_alert_fires_for_its_fault_and_the_dashboard_shows_the_storm(tmp_path: Path) -> None:
    shipped = [rule["alert"] for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"] for rule in group["rules"]]
    assert sorted(FAULTS) == sorted(shipped)
    began = time.time()
    with running_fleet(tmp_path) as fleet, prometheus(tmp_path / "prometheus", ports_of(fleet)) as server:
        two = "two workers and a look at Redis"
        wait_until(lambda: server.values("count(brimful_redis_up == 1) == 2", began, time.time()), two, 60)
        with work_for(fleet):
            for alert, fault in FAULTS.items():
                fires(server, fleet, alert, fault)
        absent = dashboard_without_data(server, began)
    front_door = ("brimful_served_", "brimful_serving_", "brimful_caller_")  # none runs here
    assert [query for query in absent if not any(name in query for name in front_door)] == []


def fires(server: Prometheus, fleet: Fleet, alert: str, fault: Fault) -> None:
    wait_until(lambda: alert not in server.firing(), f"{alert} to be quiet before its fault", PATIENCE_S)
    since = time.monotonic()
    with fault(fleet):
        wait_until(lambda: alert in server.firing(), f"{alert} to fire", PATIENCE_S)
        print(f"{alert:30} fired after {time.monotonic() - since:5.1f} s")


def dashboard_without_data(server: Prometheus, began: float) -> list[str]:
    """The queries that returned nothing in the whole storm. Prints a table of all."""
    absent = []
    for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
        for target in panel.get("targets", []):
            query = target["expr"].replace("$key", ".*")
            values = server.values(query, began, time.time())
            shown = f"{len(values):6} values, most {max(values):12.3f}" if values else "NO DATA"
            print(f"{panel['title']:28} {shown:32}  {target['expr']}")
            absent += [] if values else [target["expr"]]
    return absent


@contextlib.contextmanager
def running_fleet(directory: Path) -> Iterator[Fleet]:
    """Two workers with metrics, quick to give up on a request."""
    with contextlib.ExitStack() as stack:
        valkey = stack.enter_context(Valkey(directory / "valkey", appendonly=True))
        gateway = stack.enter_context(gateway_process("--latency", "0.05", "--per-token", "0"))
        env = {
            "ACS_API_BASE": gateway.url,
            "ACS_API_KEY": "sk-alerts",
            "BRIMFUL_REDIS_URL": valkey.url,
            "BRIMFUL_SLOTS": str(SLOTS),
            "BRIMFUL_ATTEMPTS": "3",
            "BRIMFUL_BACKOFF_CAP_S": "0.5",
            "BRIMFUL_TIMEOUT_S": "60",
        }
        workers = []
        for name in ("one", "two"):
            port = str(free_port())
            variables = environment(**env, BRIMFUL_METRICS_PORT=port)
            log = directory / f"{name}-{port}.log"
            workers.append(stack.enter_context(Background(command("worker", "--name", f"{name}@test"), variables, log)))
        for worker in workers:
            worker.ready()
        flower = str(free_port())
        arguments = [sys.executable, "-m", "celery", "-A", "brimful", "flower", f"--conf={FLOWER}", f"--port={flower}"]
        watching = environment(BRIMFUL_REDIS_URL=valkey.url, BRIMFUL_FLOWER_PASSWORD="hush")
        watcher = stack.enter_context(Background(arguments, watching, directory / f"flower-{flower}.log"))
        yield Fleet(gateway, valkey, workers, watcher, env)


def ports_of(fleet: Fleet) -> list[int]:
    return [int(process.log.stem.rpartition("-")[2]) for process in (*fleet.workers, fleet.flower)]


@contextlib.contextmanager
def work_for(fleet: Fleet) -> Iterator[None]:
    """Four requests a second, whatever becomes of them."""
    over = threading.Event()

    def enqueue(app: Celery) -> None:
        while not over.wait(0.25):
            with contextlib.suppress(OperationalError, redis.RedisError, OSError):
                app.send_task(
                    "brimful.sample", ["hi"], {"max_tokens": 4}, queue="batch", retry=False, ignore_result=True
                )

    with client(fleet.valkey.url) as app:
        thread = threading.Thread(target=enqueue, args=(app,))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
