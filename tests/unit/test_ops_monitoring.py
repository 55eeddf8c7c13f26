"""Alerts and dashboard: valid PromQL, on metrics of the catalogue."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brimful_worker.metrics import catalogue as metrics
from brimful_worker.metrics.queues import QUEUE_CATALOGUE
from support.metrics import exposed
from support.prometheus import RULES, quicker

yaml = pytest.importorskip("yaml")

OPS = Path(__file__).parents[2] / "ops"
ALERTS = yaml.safe_load((OPS / "prometheus" / "alerts.yml").read_text("utf-8"))
DASHBOARD = json.loads((OPS / "grafana" / "brimful.json").read_text("utf-8"))
METRICS = (*metrics.CATALOGUE, *QUEUE_CATALOGUE)
EXPOSED = {name for metric in METRICS for name in exposed(metric)}


def rules() -> Iterator[dict[str, Any]]:
    for group in ALERTS["groups"]:
        yield from group["rules"]


def expressions() -> list[str]:
    found = [rule["expr"] for rule in rules()]
    for panel in DASHBOARD["panels"]:
        found += [target["expr"].replace("$key", ".*") for target in panel.get("targets", [])]
    return found


def used_names() -> set[str]:
    return {name for text in expressions() for name in re.findall(r"\bbrimful_[a-z_]+", text)}


def test_only_names_of_the_catalogue_are_used() -> None:
    assert used_names() <= EXPOSED


def test_every_metric_is_in_the_dashboard_or_an_alert() -> None:
    for metric in METRICS:
        if metric is not metrics.TASKS:  # Flower's own figure is the better one for finished tasks
            assert used_names() & set(exposed(metric)), metric.name


def test_only_labels_of_the_catalogue_are_used() -> None:
    labels = {label for metric in METRICS for label in metric.labels} | {"key", "le", "instance", "job"}
    for text in expressions():
        for group in re.findall(r"\bby \(([^)]*)\)", text):
            assert {name.strip() for name in group.split(",")} <= labels
        for name in re.findall(r"[{,]\s*([a-z_]+)\s*(?:=|!)", text):
            assert name in labels


@pytest.mark.parametrize("text", expressions())
def test_every_expression_is_promql(text: str) -> None:
    parser = pytest.importorskip("promql_parser")
    parser.parse(text)


def test_every_alert_says_what_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}


def test_every_rule_is_made_to_fire_and_to_stay_quiet_in_its_tests() -> None:
    tests = yaml.safe_load((OPS / "prometheus" / "alerts_test.yml").read_text("utf-8"))["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    for fires in (True, False):
        tested = {case["alertname"] for case in cases if bool(case.get("exp_alerts")) is fires}
        assert {rule["alert"] for rule in rules()} <= tested, fires


def test_a_key_that_is_refused_alerts_at_once() -> None:
    [rule] = [rule for rule in rules() if rule["alert"] == "BrimfulKeyRefused"]
    assert (rule["labels"]["severity"], rule.get("for")) == ("critical", None)


def test_no_query_depends_on_the_name_of_a_scrape_job() -> None:
    """Each way of finding the workers (Compose, Kubernetes, an operator's objects) has another one."""
    assert not [text for text in expressions() if re.search(r"\bjob\s*[=!]", text)]


def test_the_storm_of_alerts_changes_nothing_but_durations() -> None:
    shipped, quick = RULES.read_text("utf-8"), quicker(RULES.read_text("utf-8"))
    durations = r"\[\w+\]|for: \w+"
    assert re.sub(durations, "", quick) == re.sub(durations, "", shipped)
    assert "for: 15000ms" in quick
    assert "[180000ms]" in quick
    assert not re.search(r"(\[|for: )\d+[smh]\b", quick)


def test_the_scrape_job_finds_the_workers_in_compose_and_in_kubernetes() -> None:
    config = yaml.safe_load((OPS / "prometheus" / "prometheus.yml").read_text("utf-8"))
    [job] = [job for job in config["scrape_configs"] if job["job_name"] == "brimful"]
    [name] = job["dns_sd_configs"][0]["names"]
    compose = yaml.safe_load((OPS.parent / "docker-compose.yml").read_text("utf-8"))
    assert name in compose["services"]
    services = [
        document["metadata"]["name"]
        for document in yaml.safe_load_all((OPS / "k8s" / "base" / "worker.yaml").read_text("utf-8"))
        if document["kind"] == "Service" and document["spec"]["clusterIP"] == "None"
    ]
    assert services == [name]


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@pytest.mark.compat
def test_the_alert_rules_pass_their_promtool_tests() -> None:
    promtool = shutil.which("promtool") or pytest.skip("promtool is not installed")
    for command in (["check", "config", "prometheus.yml"], ["test", "rules", "alerts_test.yml", "scaling_test.yml"]):
        done = subprocess.run(
            [promtool, *command], cwd=OPS / "prometheus", capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
