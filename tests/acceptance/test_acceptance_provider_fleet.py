"""How the whole fleet reacts to what the provider answers one worker, measured at the gateway."""

from __future__ import annotations

import itertools
import json
import os
import signal
from typing import Any

import pytest

from brimful.state.redis_url import sync_redis_client
from brimful.state.status import read_status
from support.commands import brimful_in_process
from support.fleets import Fleet, fleet
from support.gateways import GatewayProcess, gateway_process
from support.measuring import one_of_three
from support.waiting import wait_until


def _arrivals(it: Fleet) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = it.gateway.ledger(arrivals=True)["arrivals_list"]
    return found


def _breaker(it: Fleet) -> str:
    with sync_redis_client(it.local.redis_url) as client:
        return read_status(client, it.local.settings.key_tag).circuit_breaker


def test_a_retry_after_to_one_of_two_workers_stops_both(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        gateway_process("--latency", "0.5", "--per-token", "0", "--starts", "0") as gateway,
        fleet(monkeypatch, gateway, workers=2, attempts=3, starts=0, backoff_base_s=0.1) as it,
    ):
        first = it.sample_many(150)
        wait_until(lambda: gateway.ledger()["arrivals"] >= 40, "the fleet to be at work")
        gateway.set_faults("429=3:x1")
        assert all(result.get(timeout=60)["choices"] for result in first)
        arrivals = _arrivals(it)
        (refused,) = [one for one in arrivals if one["status"] == 429]
        refused_at = refused["ended"]
        # Requests granted before the pause reached Redis may still arrive. Without a pause there would be 90.
        assert len([one for one in arrivals if refused_at < one["at"] < refused_at + 2.9]) <= 32
        back = sorted(one["at"] for one in arrivals if one["at"] > refused_at + 2.9)
        assert len([at for at in back if at < back[0] + 0.3]) < 16, "sixteen slots are filled over two seconds"
        assert gateway.ledger()["attempts_max"] == 2

        # A 429 without a time delays only its own request.
        gateway.set_options(latency_s=0.1)

        def longest_gap_s() -> float:
            gateway.reset()
            gateway.set_faults("429bare:x1")
            second = it.sample_many(100)
            assert all(result.get(timeout=60)["choices"] for result in second)
            times = sorted(one["at"] for one in _arrivals(it))
            assert gateway.ledger()["statuses"] == {"200": 100, "429": 1}
            return max(after - before for before, after in itertools.pairwise(times))

        one_of_three(longest_gap_s, lambda seconds: seconds < 1.0)

        # No request exceeds the configured attempts.
        gateway.reset()
        gateway.set_faults("503:@doomed")
        doomed = [it.sample(f"doomed {number}") for number in range(4)]
        for result in doomed:
            with pytest.raises(Exception, match="3 failed attempts"):
                result.get(timeout=60)
        assert gateway.sampled([f"doomed {number}" for number in range(4)]) == [{"attempts": 3, "sampled": []}] * 4


def test_waiting_for_a_slot_does_not_count_against_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        gateway_process("--slots", "1", "--waiters", "0", "--latency", "0.5", "--per-token", "0") as gateway,
        fleet(monkeypatch, gateway, workers=1, slots=1, timeout_s=1.5) as it,
    ):
        details = [result.get(timeout=60)["brimful"] for result in it.sample_many(12)]
        assert gateway.ledger()["statuses"] == {"200": 12}
    assert [one["attempts"] for one in details] == [1] * 12
    assert max(one["waited_s"] for one in details) > 3 * 1.5


def _most_active_at_two_arrivals(gateway: GatewayProcess) -> int:
    gateway.reset()
    wait_until(lambda: gateway.ledger()["arrivals"] >= 2, "two probes")
    return int(gateway.ledger()["peak_active"])


def test_the_breaker_probes_one_at_a_time_and_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        gateway_process("--latency", "0.1", "--per-token", "0", "--faults", "503") as gateway,
        fleet(monkeypatch, gateway, workers=2, circuit_breaker=6, backoff_base_s=0.05, backoff_cap_s=0.1) as it,
    ):
        asked = it.sample_many(40)
        wait_until(lambda: _breaker(it) != "closed", "the breaker to trip")
        tripped = gateway.ledger()["arrivals"]
        shown = brimful_in_process("status", "--json", BRIMFUL_REDIS_URL=it.local.redis_url)
        assert json.loads(shown.stdout)["circuit_breaker"] in ("open", "probing"), shown.stderr
        assert json.loads(shown.stdout)["failures"] >= 6
        # what was granted before the breaker opened may arrive after it
        wait_until(lambda: _most_active_at_two_arrivals(gateway) == 1, "single probes, not sixteen at once")
        gateway.set_faults("")
        assert all(result.get(timeout=60)["choices"] for result in asked)
        assert _breaker(it) == "closed"
        assert tripped <= 2 * 16 + 6
        assert gateway.ledger()["rollouts"]["repeated"] == 0


def test_a_job_outlives_its_worker_and_a_revoked_one_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        gateway_process("--latency", "4", "--per-token", "0") as gateway,
        fleet(monkeypatch, gateway, workers=1, visibility_timeout_s=3, job_poll_s=0.2, lease_s=4) as it,
    ):
        asked = it.sample(["a", "b"], n=2, mode="job")
        wait_until(lambda: gateway.ledger()["jobs"]["created"] == 1, "the Job at the gateway")
        (pid,) = it.local.worker_pids
        os.kill(pid, signal.SIGKILL)
        assert [choice["index"] for choice in asked.get(timeout=60)["choices"]] == [0, 1, 2, 3]
        jobs = gateway.ledger()["jobs"]
        assert (jobs["created"], jobs["by_status"]) == (1, {"succeeded": 1})
        assert min(jobs["submits"].values()) >= 2, "submitted again under the same key"
        assert it.local.restarts >= 1

        gateway.set_options(latency_s=120.0)
        revoked = it.sample("slow", mode="job")
        wait_until(lambda: gateway.ledger()["jobs"]["created"] == 2, "the second Job")
        it.app.control.revoke(revoked.id, terminate=True)
        wait_until(lambda: gateway.ledger()["jobs"]["by_status"].get("cancelled") == 1, "the Job to be cancelled")
        assert gateway.ledger()["jobs"]["created"] == 2
