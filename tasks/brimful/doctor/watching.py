"""Checks of what watches the fleet: a worker's metrics on this machine, Flower, Prometheus's targets and rules."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from brimful.config import Settings
from brimful.credentials import shown_url
from brimful.doctor import Check, Level
from brimful.state.probes import failure_reason
from brimful.words.counted import counted

_TIMEOUT_S = 3.0
_JOB = "brimful"
"""The scrape job's name in ops/prometheus; the alerts count on it."""


def watching_checks(settings: Settings, flower: str | None, prometheus: str | None) -> Iterator[Check]:
    """``flower``, ``prometheus``: their base URLs; None = unknown, and Flower's is taken from the settings."""
    if settings.metrics_port:
        yield _metrics(settings)
    if flower is None and settings.flower_port:
        flower = f"http://{_host(settings.flower_address)}:{settings.flower_port}"
    if flower is not None:
        yield _flower(flower.rstrip("/"))
    if prometheus is not None:
        yield from _prometheus(prometheus.rstrip("/"))


def _metrics(settings: Settings) -> Check:
    url = f"http://{_host(settings.metrics_address)}:{settings.metrics_port}/healthz"
    text, why = _get(url)
    if text is None:
        todo = "start a worker here with BRIMFUL_METRICS_PORT; later ones on this machine take the ports above it"
        return Check("metrics", Level.WARN, f"no worker's metrics at {url}: {why}", todo)
    return Check("metrics", Level.OK, f"{url}: {text.strip()}")


def _flower(base: str) -> Check:
    text, why = _get(f"{base}/healthcheck")
    if text is None:
        return Check(
            "Flower", Level.WARN, f"no Flower at {shown_url(base)}: {why}", "start it (`brimful up`, ops/README.md)"
        )
    return Check("Flower", Level.OK, f"{shown_url(base)} answers")


def _prometheus(base: str) -> Iterator[Check]:
    targets, why = _query(f"{base}/api/v1/targets?state=active")
    if targets is None:
        said = f"no Prometheus at {shown_url(base)}: {why}"
        yield Check("Prometheus", Level.WARN, said, "check the URL, and that it runs")
        return
    ours = [each for each in targets["activeTargets"] if each["labels"].get("job") == _JOB]
    down = [each for each in ours if each["health"] == "down"]
    if not ours or down:
        said = f"{len(down)} of its {len(ours)} targets are down: {down[0]['lastError']}" if down else "no target"
        todo = "let it scrape every worker's BRIMFUL_METRICS_PORT, as ops/prometheus/prometheus.yml does"
        yield Check("Prometheus", Level.WARN, f"{shown_url(base)}, job {_JOB!r}: {said}", todo)
    else:
        yield Check("Prometheus", Level.OK, f"{shown_url(base)} scrapes {counted(len(ours), 'worker')}")
    rules, why = _query(f"{base}/api/v1/rules?type=alert")
    names = [rule["name"] for group in (rules or {}).get("groups", []) for rule in group["rules"]]
    if any(name.startswith("Brimful") for name in names):
        firing = sorted({rule["name"] for group in rules["groups"] for rule in group["rules"] if rule["alerts"]})
        said = f"alerts: {', '.join(firing)}" if firing else "no alert"
        yield Check("alerts", Level.NOTE if firing else Level.OK, said)
    else:
        said = f"no rule of ours{f': {why}' if why else ''}"
        yield Check("alerts", Level.WARN, said, "load ops/prometheus/alerts.yml (rule_files)")


def _query(url: str) -> tuple[Any, str]:
    text, why = _get(url)
    if text is None:
        return None, why
    try:
        return json.loads(text)["data"], ""
    except (ValueError, KeyError, TypeError):
        return None, "its answer is not Prometheus's"


def _get(url: str) -> tuple[str | None, str]:
    """The answer's text; or None, and the reason."""
    if not url.startswith(("http://", "https://")):
        return None, "the URL must begin with http:// or https://"
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310
            return answer.read().decode("utf-8", "replace"), ""
    except urllib.error.HTTPError as error:
        with error:
            return None, f"status {error.code}"
    except (OSError, http.client.HTTPException, ValueError) as error:
        return None, failure_reason(error)


def _host(address: str) -> str:
    """Where to reach what listens on ``address``."""
    address = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(address, address)  # noqa: S104
    return f"[{address}]" if ":" in address else address
