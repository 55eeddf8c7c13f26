"""Traces of a real fleet: from the caller through enqueue, task and attempts to the provider, at a real collector."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from brimful import Fleet
from brimful_worker.local.server.valkey import Valkey
from support.commands import brimful, command, environment, records
from support.fleets import declare_new
from support.gateways import GatewayProcess, gateway_process
from support.pool_worker import Background
from support.spans import Collector, Exported, in_memory
from support.waiting import wait_until

pytest.importorskip("opentelemetry.instrumentation.celery")
PATIENCE_S = 60.0


@dataclass
class Traced:
    """A worker under ``opentelemetry-instrument``, which instruments its Celery, and where its spans arrive."""

    url: str
    gateway: GatewayProcess
    collector: Collector
    worker: Background

    def trace(self, id: str, *names: str) -> list[Exported]:
        """The spans of a trace at the collector, once these have arrived."""
        wait_until(
            lambda: sorted(names) == sorted(span.name for span in self.collector.trace(id) if span.name in names),
            f"{names} in {[span.name for span in self.collector.trace(id)]}",
            PATIENCE_S,
        )
        return self.collector.trace(id)

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.worker.output.splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    folder = tmp_path_factory.mktemp("traces")
    instrument = Path(sys.executable).with_name("opentelemetry-instrument")
    with (
        Valkey(folder / "valkey") as valkey,
        gateway_process("--latency", "0", "--per-token", "0") as gateway,
        Collector() as collector,
    ):
        env = environment(
            ACS_API_BASE=gateway.url, ACS_API_KEY="sk-traced", BRIMFUL_REDIS_URL=valkey.url, BRIMFUL_ATTEMPTS="2",
            BRIMFUL_BACKOFF_BASE_S="0.01", BRIMFUL_LOG_FORMAT="json", BRIMFUL_GUARDIAN="0", **collector.environment,
        )  # fmt: skip
        declare_new(valkey, "sk-traced")
        worker = command("worker", "--name", "traced")
        with Background([str(instrument), *worker], env, folder / "worker.log") as running:
            yield Traced(valkey.url, gateway, collector, running.ready())


def test_a_run_s_trace_leads_from_its_error_record_to_both_attempts(tmp_path: Path, traced: Traced) -> None:
    lines, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines.write_text('{"id": "bad", "prompt": "doomed"}\n')
    traced.gateway.set_faults("500:@doomed")
    env = {"BRIMFUL_REDIS_URL": traced.url, **traced.collector.environment}
    done = brimful("run", lines, "-o", out, "--max-tokens", "2", "--no-progress", **env)
    assert done.returncode == 3, done.stderr
    [bad] = records(Path(f"{out}.errors.jsonl"))

    def ended() -> list[dict[str, Any]]:
        return [one for one in traced.log() if one.get("request_id") == bad["request_id"] and "attempt" in one]

    [record] = wait_until(ended, "its record in the log", PATIENCE_S)
    assert record["provider_request_ids"] == bad["provider_request_ids"]
    spans = traced.trace(
        record["trace_id"], "brimful enqueue", "run/brimful.shard", "brimful request", *["brimful attempt"] * 2
    )
    [enqueue] = [span for span in spans if span.name == "brimful enqueue"]
    [task] = [span for span in spans if span.name == "run/brimful.shard"]
    [request] = [span for span in spans if span.name == "brimful request"]
    attempts = [span for span in spans if span.name == "brimful attempt"]
    assert (enqueue.parent, task.parent, request.parent) == ("", enqueue.id, task.id)
    assert {span.parent for span in attempts} == {request.id}
    assert (enqueue.service, request.service) == ("brimful-run", "brimful-worker")
    assert request.attributes["brimful.request_id"] == bad["request_id"]
    assert request.attributes["brimful.line_id"] == "bad"
    assert [span.attributes["brimful.provider_request_id"] for span in attempts] == bad["provider_request_ids"]
    assert [span.failed for span in (task, request, *attempts)] == [False, True, True, True]


def test_a_service_s_span_is_the_root_of_what_it_asks_for(monkeypatch: pytest.MonkeyPatch, traced: Traced) -> None:
    """The service has instrumented its Celery too; its span of a task sent by name would never end."""
    from opentelemetry import trace
    from opentelemetry.instrumentation.celery import CeleryInstrumentor

    monkeypatch.setenv("BRIMFUL_REDIS_URL", traced.url)
    with in_memory() as exporter, Fleet() as fleet:
        CeleryInstrumentor().instrument()
        try:
            with trace.get_tracer("service").start_as_current_span("handle order") as mine:
                fleet.sample("hi", max_tokens=2, timeout=120)
                [mapped] = fleet.map(["there"], max_tokens=2)
                assert trace.get_current_span() is mine
        finally:
            CeleryInstrumentor().uninstrument()
        enqueued = {
            f"{span.context.span_id:016x}" for span in exporter.get_finished_spans() if span.name == "brimful enqueue"
        }
    id = f"{mine.get_span_context().trace_id:032x}"
    names = ("run/brimful.sample", "run/brimful.shard", *["brimful request", "brimful attempt"] * 2)
    spans = traced.trace(id, *names)
    tasks = [span for span in spans if span.name.startswith("run/")]
    assert {span.parent for span in tasks} == enqueued
    assert len(enqueued) == 2
    requests = [span for span in spans if span.name == "brimful request"]
    assert {span.parent for span in requests} == {span.id for span in tasks}
    ids = {span.attributes["brimful.provider_request_id"] for span in spans if span.name == "brimful attempt"}
    assert set(mapped.provider_request_ids) < ids


def test_the_worker_s_last_spans_are_sent_when_it_stops(monkeypatch: pytest.MonkeyPatch, traced: Traced) -> None:
    """The last test: it ends the worker."""
    monkeypatch.setenv("BRIMFUL_REDIS_URL", traced.url)
    with Fleet() as fleet:
        handle = fleet.submit("last", max_tokens=2)
        handle.get(timeout=120)
    assert traced.worker.stop(timeout=120) == 0
    [request] = [span for span in traced.collector.spans if span.attributes.get("brimful.task_id") == handle.id]
    names = {span.name for span in traced.collector.trace(request.trace)}
    assert names == {"run/brimful.sample", "brimful request", "brimful attempt"}
    assert not [one for one in traced.log() if one["logger"].startswith("opentelemetry") and one["level"] == "ERROR"]
