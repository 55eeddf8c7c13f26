"""One request from its line or task to the provider's own ids: error records, exceptions, results and JSON logs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brimful import Fleet
from brimful.errors import TransientFailure
from support.commands import brimful, records
from support.fleets import Fleet as RealFleet
from support.fleets import shared_fleet
from support.waiting import wait_until

SECRET = "doomed, and nobody's business"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    state = tmp_path_factory.mktemp("logs-fleet")
    quick = {"attempts": 2, "backoff_base_s": 0.01, "log_format": "json", "log_level": "DEBUG", "fleet": "evals"}
    with shared_fleet(state, latency_s=0.0, workers=1, **quick) as shared:
        shared.gateway.set_faults("500:@doomed")
        yield shared


def _log(real: RealFleet) -> list[dict[str, Any]]:
    """The worker's log. What was printed before logging was set up is no JSON."""
    assert real.local.logs is not None
    lines = "".join(path.read_text("utf-8") for path in real.local.logs.glob("worker*.log")).splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def _of(real: RealFleet, **wanted: Any) -> list[dict[str, Any]]:
    return [one for one in _log(real) if all(one.get(name) == value for name, value in wanted.items())]


def _ids_at_the_provider(real: RealFleet, status: int) -> set[str]:
    arrivals = real.gateway.ledger(arrivals=True)["arrivals_list"]
    return {one["request_id"] for one in arrivals if one["status"] == status}


def test_a_line_that_failed_is_followed_from_its_error_record_to_the_provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real: RealFleet
) -> None:
    lines, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines.write_text(f'{{"id": "good", "prompt": "hi"}}\n{json.dumps({"id": "bad", "prompt": SECRET})}\n')
    env = {"BRIMFUL_REDIS_URL": real.local.redis_url, "BRIMFUL_FLEET": "evals"}
    done = brimful("run", lines, "-o", out, "--max-tokens", "2", "--pack", "off", "--no-progress", **env)
    assert done.returncode == 3, done.stderr

    [good], [bad] = records(out), records(Path(f"{out}.errors.jsonl"))
    assert (bad["id"], bad["attempts"], len(set(bad["provider_request_ids"]))) == ("bad", 2, 2)
    assert set(bad["provider_request_ids"]) <= _ids_at_the_provider(real, 500)
    assert set(good["provider_request_ids"]) <= _ids_at_the_provider(real, 200)

    logged = wait_until(
        lambda: len(found := _of(real, request_id=bad["request_id"], line_id="bad")) >= 3 and found, "its records"
    )
    attempts = [one for one in logged if one["level"] == "DEBUG" and "attempt" in one]
    assert [one["attempt"] for one in attempts] == [1, 2]
    assert [one["provider_request_ids"] for one in attempts] == [[id] for id in bad["provider_request_ids"]]
    [ended] = [one for one in logged if one["level"] == "INFO"]
    assert (ended["cause"], ended["provider_request_ids"]) == ("server_error", bad["provider_request_ids"])
    assert {one["fleet"] for one in logged} == {"evals"}
    assert all(one["process"].startswith("worker-1-") for one in logged)
    [run] = {one["run"] for one in logged}
    [task] = {one["task_id"] for one in logged}
    assert run
    wait_until(lambda: _of(real, task_id=task, task="brimful.shard", level="INFO"), "Celery's own record of its shard")


def test_a_single_request_is_followed_from_its_exception_to_the_provider(real: RealFleet) -> None:
    with Fleet(real.local.redis_url, fleet="evals") as fleet, pytest.raises(TransientFailure) as caught:
        fleet.sample(SECRET, max_tokens=2, timeout=120)
    error = caught.value
    assert (error.attempts, len(error.provider_request_ids)) == (2, 2)
    assert set(error.provider_request_ids) <= _ids_at_the_provider(real, 500)
    logged = wait_until(
        lambda: len(found := _of(real, task_id=error.request_id)) >= 3 and found, "the records of its attempts and task"
    )
    assert [one["attempt"] for one in logged if "attempt" in one] == [1, 2]
    assert {one["task"] for one in logged if "task" in one} == {"brimful.sample"}


def test_results_name_the_provider_s_ids(real: RealFleet) -> None:
    with Fleet(real.local.redis_url, fleet="evals") as fleet:
        completion = fleet.sample("hi", max_tokens=2, timeout=120)
        one, other = fleet.map(["one", SECRET], max_tokens=2, pack="off")
    [id] = completion["brimful"]["provider_request_ids"]
    assert {id, *one.provider_request_ids} <= _ids_at_the_provider(real, 200)
    assert set(other.provider_request_ids) <= _ids_at_the_provider(real, 500)
    with pytest.raises(TransientFailure) as caught:
        other.check()
    assert caught.value.provider_request_ids == other.provider_request_ids
    assert _of(real, request_id=caught.value.request_id)


def test_every_line_of_the_log_is_json_and_none_holds_a_prompt(real: RealFleet) -> None:
    assert real.local.logs is not None
    lines = [line for path in real.local.logs.glob("worker*.log") for line in path.read_text("utf-8").splitlines()]
    assert lines
    assert [line for line in lines if not line.startswith("{")] == []
    assert not [line for line in lines if SECRET in line or "sk-fleet" in line]
