"""Workers and the server are killed under a run, through each kind of Redis URL that docs/redis.md promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from brimful_worker.local.server.valkey import Valkey
from support.chaos import LONG, rounds
from support.kills import STARTS, WINDOW_S, killed_under_a_run
from support.pairings import PAIRINGS, REDIS, reached_by, reached_by_tls_sentinels, refused_commands
from support.strict_gateway import StrictGatewayProcess

SHORT = ("sentinel",)
"""In `make test`: its user has few rights. Other storms take the plain form, the test below TLS, `make chaos` all."""


@pytest.mark.chaos
@pytest.mark.timeout(1800 if LONG else 240)
@pytest.mark.parametrize("pairing", PAIRINGS if LONG else SHORT)
def test_kills_under_a_run(tmp_path: Path, pairing: str) -> None:
    with reached_by(pairing, tmp_path) as (where, valkey):
        holds_under_kills(tmp_path, where, valkey)


@pytest.mark.compat
@pytest.mark.chaos
@pytest.mark.timeout(1800 if LONG else 240)
@pytest.mark.skipif(REDIS is None, reason="no Redis with TLS here: `make compat` installs Debian's redis-server")
def test_kills_under_a_run_behind_sentinels_with_tls(tmp_path: Path) -> None:
    with reached_by_tls_sentinels(tmp_path) as (where, server):
        holds_under_kills(tmp_path, where, server)


def holds_under_kills(directory: Path, where: dict[str, str], server: Valkey) -> None:
    lines, kills = rounds(60, 1500), rounds(2, 8)
    quick = {} if LONG else {"BRIMFUL_LEASE_S": "2", "BRIMFUL_VISIBILITY_TIMEOUT_S": "3"}
    with StrictGatewayProcess(starts=STARTS, window=WINDOW_S, latency=0.4, spread=0.2) as gateway:
        deaths = killed_under_a_run(directory, gateway, server, where, lines=lines, rounds=kills, workers=2, **quick)
        ledger = gateway.ledger()
    assert refused_commands(server) == []
    assert deaths >= 1
    assert ledger["peak_active"] <= 16
    assert ledger["most_in_window"] <= STARTS
    assert set(ledger["statuses"]) == {"200"}
