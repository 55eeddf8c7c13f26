"""A real Prometheus process (Debian's package ``prometheus``) with the shipped rules, for tests that run them."""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from brimful_worker.local.server.valkey import free_port
from support.waiting import wait_until

RULES = Path(__file__).parents[2] / "ops" / "prometheus" / "alerts.yml"
BINARY = shutil.which("prometheus")
SPEED = 20
"""By how much the rules' durations and the scrape interval are divided."""
_SCRAPE_MS = 10_000 // SPEED
_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000}
_DURATION = re.compile(r"(?<=\[)(\d+)([smh])(?=\])|(?<=for: )(\d+)([smh])")


def quicker(rules: str) -> str:
    """The rules with each ``[range]`` and each ``for:`` divided by :data:`SPEED`, and nothing else changed."""

    def divided(found: re.Match[str]) -> str:
        count, unit = (group for group in found.groups() if group)
        return f"{int(count) * _UNITS_MS[unit] // SPEED}ms"

    return _DURATION.sub(divided, rules)


class Prometheus:
    """Answers queries and says which alerts fire."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def firing(self) -> set[str]:
        alerts = self._ask("/api/v1/alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def values(self, query: str, start: float, end: float) -> list[float]:
        """All values of all series from ``start`` to ``end`` (Unix seconds), one a second, without NaN."""
        parameters = {"query": query, "start": start, "end": end, "step": 1}
        series = self._ask("/api/v1/query_range?" + urllib.parse.urlencode(parameters))["result"]
        found = [float(value) for one in series for _, value in one["values"]]
        return [value for value in found if not math.isnan(value)]

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=5):
                return True
        except OSError:
            return False

    def _ask(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(self._url + path, timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)["data"]
        return found


@contextlib.contextmanager
def prometheus(directory: Path, ports: Sequence[int]) -> Iterator[Prometheus]:
    """It scrapes the workers' metrics ports in a job whose name no rule knows."""
    assert BINARY is not None
    directory.mkdir()
    own, targets = free_port(), [f"127.0.0.1:{port}" for port in ports]
    interval = f"{_SCRAPE_MS}ms"
    config = {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "rule_files": ["alerts.yml"],
        "scrape_configs": [{"job_name": "some-name", "static_configs": [{"targets": targets}]}],
    }
    (directory / "prometheus.yml").write_text(json.dumps(config), "utf-8")  # JSON is YAML
    (directory / "alerts.yml").write_text(quicker(RULES.read_text("utf-8")), "utf-8")
    flags = [f"--web.listen-address=127.0.0.1:{own}", "--storage.tsdb.path=data", "--config.file=prometheus.yml"]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen([BINARY, *flags], cwd=directory, stdout=log, stderr=log)
    try:
        server = Prometheus(own)
        wait_until(lambda: server.ready() or process.poll() is not None, "Prometheus", 60)
        assert process.poll() is None, (directory / "log").read_text("utf-8")[-3000:]
        yield server
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
