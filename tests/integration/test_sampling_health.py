"""How the provider answers, as an operator sees it: in the log, in ``brimful status`` and in the metrics."""

from __future__ import annotations

import json
import urllib.request

from brimful_worker.local.server.valkey import Valkey, free_port
from support.commands import brimful_in_process, command, environment
from support.fleets import declare_new
from support.gateways import gateway_process
from support.pool_worker import Background, client
from support.waiting import wait_until

KEY = "sk-health-7d1f"


def test_a_refused_key_is_seen_at_once(valkey: Valkey) -> None:
    port = free_port()
    with gateway_process("--latency", "0", "--per-token", "0") as gateway, client(valkey.url) as service:
        env = environment(
            ACS_API_BASE=gateway.url,
            ACS_API_KEY=KEY,
            BRIMFUL_REDIS_URL=valkey.url,
            BRIMFUL_METRICS_PORT=str(port),
        )

        def gauge(state: str) -> bool:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
                lines = page.read().decode().splitlines()
            return any(line.endswith(f'state="{state}"}} 1.0') for line in lines if "provider_state" in line)

        declare_new(valkey, KEY)
        with Background(command("worker", "--name", "one@test"), env).ready() as worker:
            service.send_task("brimful.sample", ("hi",), {"max_tokens": 2}).get(timeout=60)
            wait_until(lambda: gauge("ok"), "the gauge of a good answer")
            gateway.set_faults("401")
            asked = [service.send_task("brimful.sample", ("hi",), {"max_tokens": 2}) for _ in range(20)]
            for one in asked:
                one.get(timeout=60, propagate=False)
            wait_until(lambda: gauge("key_refused"), "the gauge of the refused key")
            assert not gauge("ok")
            status = brimful_in_process("status", BRIMFUL_REDIS_URL=valkey.url)
            assert "key refused: every request fails until the key is replaced" in status.stdout.splitlines()[0]
            assert "provider   key refused since" in status.stdout
            assert "HTTP 401" in status.stdout
            seen = json.loads(brimful_in_process("status", "--json", BRIMFUL_REDIS_URL=valkey.url).stdout)["provider"]
            assert (seen["state"], seen["status"]) == ("key_refused", 401)
            errors = [line for line in worker.output.splitlines() if "ERROR" in line]
            assert len(errors) == 1
            assert "the provider refuses the API key (HTTP 401" in errors[0]
            gateway.set_faults("")
            service.send_task("brimful.sample", ("hi",), {"max_tokens": 2}).get(timeout=60)
            wait_until(lambda: gauge("ok"), "the gauge of a good answer")
            assert "the provider takes requests again" in worker.output
            assert worker.stop() == 0
            assert KEY not in worker.output + status.stdout
