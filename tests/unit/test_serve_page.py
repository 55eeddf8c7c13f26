"""The front door's page without sockets: what it counts, what it shows of a status, and its files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from brimful.outcome import Cause, Failure, Outcome
from brimful.run.output.paths import OutputFormat, RunPaths
from brimful.run.output.sidecar import Sidecar
from brimful.state.provider_health import ProviderHealth
from brimful.state.status import Status, WorkerStatus
from brimful_worker.serve.batches.record import Batch
from brimful_worker.serve.batches.store import Batches, new_id
from brimful_worker.serve.page.batches import ShownBatches
from brimful_worker.serve.page.figures import of_status
from brimful_worker.serve.page.handlers import ASSETS, FILES, HEADERS, named_as_local
from brimful_worker.serve.page.recent import Recent

WORDS = "the provider repeats a canary prompt"


def completion(**usage: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": WORDS}], "usage": usage}


def test_answers_tokens_429s_and_failures_are_counted_by_caller() -> None:
    recent = Recent()
    retries = {Cause.RATE_LIMITED.value: 2, Cause.SERVER_ERROR.value: 1}
    recent.ended("a", Outcome("1", completion=completion(prompt_tokens=3, completion_tokens=4), retries=retries))
    recent.ended("a", Outcome("2", completion=completion(prompt_tokens="many", completion_tokens=None)))
    recent.ended("b", Outcome("3", failure=Failure(Cause.SERVER_ERROR, WORDS), retries={Cause.QUEUE_FULL.value: 1}))
    recent.refused("b", 502, "server_error", "/v1/completions")
    recent.refused("b", 400, None, "/v1/chat/completions")
    assert (recent.tokens, recent.throttled) == (7, 3)
    assert [(each["status"], each["code"]) for each in recent.failures()] == [
        (400, "invalid_request"),
        (502, "server_error"),
    ]
    assert WORDS not in str(recent.failures())
    turns = [("c", "batch", False), ("a", "interactive", True), ("b", "interactive", False), ("c", "batch", False)]
    found = {each.pop("caller"): each for each in recent.callers(turns)}
    assert [*found] == ["c", "b", "a"]
    assert found["c"] == {"interactive": 0, "batch": 2, "sending": 0, "answered": 0, "failed": 0}
    assert found["b"] == {"interactive": 1, "batch": 0, "sending": 0, "answered": 0, "failed": 2}
    assert found["a"] == {"interactive": 0, "batch": 0, "sending": 1, "answered": 2, "failed": 0}


def test_only_the_last_failures_are_kept() -> None:
    recent = Recent()
    for number in range(100):
        recent.refused("", 500, f"{number}" + "x" * 1000, "/v1/completions")
    assert recent.failed[""] == 100
    assert len(recent.failures()) == 30
    assert all(len(each["code"]) == 64 for each in recent.failures())


def test_of_a_status_neither_the_provider_s_words_nor_processes_are_shown() -> None:
    worker = WorkerStatus("p-secret", "w@host", "10.0.0.7", 4711, held=1, interactive=2, batch=3, heard_s=0.1)
    status = Status(
        tag="t", epoch="e", rebuilding=False, slots=16, slots_used=1, cooling=0, starts=600, starts_used=2, window_s=60,
        tokens=None, tokens_used=0, budget=None, budget_spent=0, waiting={"interactive": 2, "batch": 3}, pause_s=0.0,
        pause_reason=None, circuit_breaker="closed", failures=0, limits={"lease_s": 20.0}, overridden=(),
        workers=(worker,), provider=ProviderHealth("failing", 1.0, 2.0, 500, WORDS, {}),
    )  # fmt: skip
    found = of_status(status)
    assert found["provider"] == {"state": "failing", "since": 1.0, "status": 500}
    assert found["workers"][0]["name"] == "w@host"
    assert found["limits"] == {"lease_s": 20.0}, "by which the page says who is silent"
    assert not [word for word in (WORDS, "p-secret", "10.0.0.7", "4711") if word in str(found)]


def test_batches_under_way_come_first_and_old_ones_are_read_once(tmp_path: Path) -> None:
    store = Batches(tmp_path / "batches", 1000.0)
    upload = tmp_path / "upload"
    upload.write_text("a line")

    def add(created: float, **more: Any) -> Batch:
        batch = Batch(
            id=new_id(), caller="ada", endpoint="/v1/completions", input_file_id="f", completion_window="24h",
            created=created, expires_at=10**10, output_keep_s=1.0, total=4, metadata={"note": WORDS}, **more,
        )  # fmt: skip
        return store.create(batch, upload)

    shown = ShownBatches(store, "evals")
    ended = [add(1000 + number, status="completed", completed=3, failed=1) for number in range(8)]
    going = add(1.0, status="in_progress", completed=2)
    found = shown.read()
    assert [each["id"] for each in found] == [going.id, *(batch.id for batch in reversed(ended[3:]))]
    assert found[0] == {
        "id": going.id, "caller": "ada", "run": None, "status": "in_progress", "created": 1.0, "requests": 4,
        "completed": 2, "failed": 0,
    }  # fmt: skip
    assert WORDS not in str(found)
    sidecar = RunPaths(store.of_batch(going.id) / "out.jsonl", OutputFormat.OPENAI_BATCH).sidecar
    sidecar.write_text("half a fi")
    assert shown.read()[0]["run"] is None
    Sidecar("r-now", {}).store(sidecar)
    assert shown.read()[0]["run"] == "evals.r-now", "as Redis names it"
    sidecar.unlink()
    assert shown.read()[0]["run"] == "evals.r-now", "also for the moments for which Redis knows it after its end"
    for batch in ended:
        (store.of_batch(batch.id) / "batch.json").write_text("no longer read")
    store.cancel(going.id)
    assert [each["status"] for each in shown.read()] == ["cancelling", *["completed"] * 5]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8000", "127.9.9.9", "[::1]:8000", "LOCALHOST:1"])
def test_this_machine_s_names(host: str) -> None:
    assert named_as_local(host)


@pytest.mark.parametrize("host", ["example.org", "127.0.0.1.example.org:80", "10.0.0.1", "", "localhost.example", "[x"])
def test_other_names(host: str) -> None:
    assert not named_as_local(host)


def test_the_page_s_files_name_nothing_outside() -> None:
    policy = HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "unsafe" not in policy
    assert {each.name for each in ASSETS.iterdir()} == set(FILES.values())
    for name in FILES.values():
        text = (ASSETS / name).read_text("utf-8")
        assert not set(re.findall(r"https?://[^\s\"']+", text)) - {"http://www.w3.org/2000/svg"}, name
        assert not re.search(r"innerHTML|\son\w+=|\sstyle=|javascript:|<style", text), name
