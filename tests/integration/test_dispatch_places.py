"""A run fills the slots though its worker runs few tasks at once: each of them then carries several requests."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from brimful_worker.local.server.valkey import Valkey
from support.commands import Running, brimful, write_prompts
from support.fleets import declare_new
from support.gateways import gateway_process
from support.waiting import wait_until


def test_a_worker_with_few_places_fills_many_slots(tmp_path: Path, valkey: Valkey) -> None:
    source, out = write_prompts(tmp_path / "in.jsonl", 400), tmp_path / "out.jsonl"
    flags = ("--latency", "3", "--per-token", "0", "--slots", "32", "--starts", "0")
    with gateway_process(*flags) as gateway, ThreadPoolExecutor(1) as thread:
        env = {"BRIMFUL_REDIS_URL": valkey.url, "ACS_API_BASE": gateway.url, "ACS_API_KEY": "sk-places"}
        declare_new(valkey, "sk-places")
        env |= {"BRIMFUL_SLOTS": "32", "BRIMFUL_STARTS": "0"}
        with Running("worker", "-c", "4", **env) as worker:
            worker.text_until("ready")
            running = thread.submit(
                brimful, "run", source, "-o", out, "--max-tokens", "8", "--pack", "off", "--json", **env
            )
            wait_until(lambda: gateway.ledger()["active"] == 32, "all slots in use")
            gateway.set_options(latency_s=0.1)
            done = running.result()
            assert done.returncode == 0, done.stderr
            worker.interrupt()
        ledger = gateway.ledger()
    assert json.loads(done.stdout)["rollouts"] == 400
    assert ledger["peak_active"] <= 32
