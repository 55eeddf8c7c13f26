"""Kustomize's overlays and the operators' objects: what each one builds."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

OPS = Path(__file__).parents[2] / "ops"
K8S = OPS / "k8s"
OPERATORS = {"PodMonitor", "PrometheusRule", "ScaledObject"}


def objects(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text("utf-8")) if document]


def built(name: str) -> list[dict[str, Any]]:
    kubectl = shutil.which("kubectl") or pytest.skip("kubectl is not installed")
    done = subprocess.run([kubectl, "kustomize", str(K8S / name)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def named(found: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    [one] = [each for each in found if each["kind"] == kind and each["metadata"]["name"] == name]
    return one


def kinds(found: list[dict[str, Any]]) -> set[str]:
    return {each["kind"] for each in found}


@pytest.mark.parametrize("name", ["", "overlays/dev", "overlays/prod"])
def test_what_is_built_matches_kubernetes_schemas(name: str) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    for each in built(name):
        if each["kind"] not in OPERATORS:
            validator.validate(each, "1.34", strict=True)
        assert each["metadata"]["namespace"] == "brimful"


def test_every_resource_that_a_kustomization_names_exists() -> None:
    for path in K8S.rglob("kustomization.yaml"):
        [kustomization] = objects(path)
        for resource in (*kustomization.get("resources", ()), *kustomization.get("components", ())):
            assert (path.parent / resource).exists(), resource


def test_prod_names_every_image_so_that_it_may_have_a_digest() -> None:
    pods = [
        each for path in (K8S / "base").glob("*.yaml") for each in objects(path) if "template" in each.get("spec", {})
    ]
    used = {container["image"].partition(":")[0] for pod in pods for container in _containers(pod)}
    [prod] = objects(K8S / "overlays" / "prod" / "kustomization.yaml")
    assert {image["name"] for image in prod["images"]} == used == {"brimful", "valkey/valkey"}


def _containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    spec = pod["spec"]["template"]["spec"]
    return [*spec["containers"], *spec.get("initContainers", ())]


def test_every_process_learns_of_another_broker() -> None:
    pods = [
        each for path in (K8S / "base").glob("*.yaml") for each in objects(path) if "template" in each.get("spec", {})
    ]
    ours = [container for pod in pods for container in _containers(pod) if container["image"].startswith("brimful")]
    assert len(ours) >= 3
    for container in ours:
        secrets = [source["secretRef"]["name"] for source in container.get("envFrom", ()) if "secretRef" in source]
        alone = [each["name"] for each in container.get("env", ())]
        assert "brimful" in secrets or "BRIMFUL_BROKER_URL" in alone, container["name"]


def test_dev_is_small_and_samples_from_the_mock_gateway() -> None:
    found = built("overlays/dev")
    assert not kinds(found) & {"HorizontalPodAutoscaler", "PodDisruptionBudget", *OPERATORS}
    assert named(found, "Deployment", "worker")["spec"]["replicas"] == 1
    [container] = named(found, "Deployment", "gateway")["spec"]["template"]["spec"]["containers"]
    assert container["args"][:1] == ["gateway"]
    assert str(named(found, "Service", "gateway")["spec"]["ports"][0]["port"]) == container["args"][-1]


def test_prod_has_one_autoscaler_a_password_and_a_disruption_budget() -> None:
    found = built("overlays/prod")
    assert "HorizontalPodAutoscaler" not in kinds(found)
    scaled = named(found, "ScaledObject", "worker")["spec"]["scaleTargetRef"]["name"]
    assert "replicas" not in named(found, "Deployment", scaled)["spec"]
    assert named(found, "PodDisruptionBudget", "worker")["spec"]["minAvailable"] == 1
    [valkey] = named(found, "StatefulSet", "valkey")["spec"]["template"]["spec"]["containers"]
    password = next(variable for variable in valkey["env"] if variable["name"] == "BRIMFUL_REDIS_PASSWORD")
    assert password["valueFrom"]["secretKeyRef"]["optional"] is False
    assert "requirepass" not in " ".join(valkey["command"])


def test_in_prod_every_pod_reaches_and_is_reached_by_what_is_named_only() -> None:
    found = built("overlays/prod")
    [everything] = [each["spec"] for each in found if each["metadata"]["name"] == "everything"]
    assert (everything["policyTypes"], everything.get("ingress")) == (["Ingress", "Egress"], None)
    pods = [each for each in found if each["kind"] in ("Deployment", "StatefulSet")]
    for pod in pods:
        [expression] = everything["podSelector"]["matchExpressions"]
        labels = pod["spec"]["template"]["metadata"]["labels"]
        assert labels[expression["key"]] in expression["values"], pod["metadata"]["name"]
    # Each port that a policy opens is one that a container of the selected pods listens on.
    ports = {port["containerPort"] for pod in pods for container in pod["spec"]["template"]["spec"]["containers"]
             for port in container.get("ports", ())}  # fmt: skip
    for policy in (each["spec"] for each in found if each["kind"] == "NetworkPolicy"):
        for rule in policy.get("ingress") or ():
            assert {port["port"] for port in rule["ports"]} <= ports


def test_the_prometheus_rule_is_the_shipped_rules() -> None:
    [rule] = objects(K8S / "operators" / "prometheusrule.yaml")
    shipped = [objects(OPS / "prometheus" / name)[0]["groups"] for name in ("alerts.yml", "scaling.yml")]
    assert rule["apiVersion"] == "monitoring.coreos.com/v1"
    assert rule["spec"] == {"groups": shipped[0] + shipped[1]}, "run: python ops/k8s/operators/make_rule.py"


def test_the_pod_monitors_find_every_pod_that_has_metrics() -> None:
    found = built("overlays/prod")
    scraped = set()
    for monitor in (each["spec"] for each in found if each["kind"] == "PodMonitor"):
        selector = monitor["selector"]
        [expression] = selector.get("matchExpressions") or [
            {"values": [selector["matchLabels"]["app.kubernetes.io/name"]]}
        ]
        [endpoint] = monitor["podMetricsEndpoints"]
        for name in expression["values"]:
            template = named(found, "Deployment", name)["spec"]["template"]
            assert template["metadata"]["labels"]["app.kubernetes.io/name"] == name
            ports = {port["name"] for container in template["spec"]["containers"] for port in container["ports"]}
            assert endpoint["port"] in ports, name
            scraped.add(name)
    assert scraped == {"worker", "serve", "flower"}


def test_keda_asks_for_a_rule_that_is_shipped_and_falls_back() -> None:
    [scaled] = [each["spec"] for each in objects(K8S / "operators" / "scaledobject.yaml")]
    [trigger] = scaled["triggers"]
    assert (trigger["type"], trigger["metricType"], trigger["metadata"]["threshold"]) == (
        "prometheus",
        "AverageValue",
        "1",
    )
    parser = pytest.importorskip("promql_parser")
    parser.parse(trigger["metadata"]["query"])
    [asked] = re.findall(r"brimful:\w+", trigger["metadata"]["query"])
    [groups] = [one["groups"] for one in objects(OPS / "prometheus" / "scaling.yml")]
    rules = {rule["record"]: rule["expr"] for group in groups for rule in group["rules"]}
    assert asked in rules
    for expression in rules.values():
        parser.parse(expression)
    assert scaled["minReplicaCount"] <= scaled["fallback"]["replicas"] <= scaled["maxReplicaCount"]
