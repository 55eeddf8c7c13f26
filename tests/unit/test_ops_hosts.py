"""Kubernetes manifests and systemd units: valid by real validators, and confined."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

OPS = Path(__file__).parents[2] / "ops"
MANIFESTS = sorted(path for path in (OPS / "k8s" / "base").glob("*.yaml") if path.name != "kustomization.yaml")
UNITS = sorted((OPS / "systemd").glob("*.service"))


def documents() -> list[dict[str, Any]]:
    return [document for path in MANIFESTS for document in yaml.safe_load_all(path.read_text("utf-8"))]


def pods() -> dict[str, dict[str, Any]]:
    return {
        document["metadata"]["name"]: document["spec"]["template"]["spec"]
        for document in documents()
        if document["kind"] in ("Deployment", "StatefulSet")
    }


@pytest.mark.parametrize(
    "document", documents(), ids=lambda document: f"{document['kind']}-{document['metadata']['name']}"
)
def test_manifests_match_kubernetes_schemas(document: dict[str, Any]) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    validator.validate(document, "1.34", strict=True)


def test_the_kustomization_lists_every_manifest() -> None:
    kustomization = yaml.safe_load((OPS / "k8s" / "base" / "kustomization.yaml").read_text("utf-8"))
    assert sorted(kustomization["resources"]) == [path.name for path in MANIFESTS]


def test_pods_are_confined_and_take_no_setting_from_service_links() -> None:
    for name, pod in pods().items():
        assert pod["enableServiceLinks"] is False, name
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["securityContext"]["runAsNonRoot"], name
        for container in pod["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"], name
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, name
            assert "memory" in container["resources"]["limits"], name


def test_the_autoscaler_owns_the_number_of_workers_and_the_key_is_a_secret() -> None:
    worker = next(d for d in documents() if d["kind"] == "Deployment" and d["metadata"]["name"] == "worker")
    assert "replicas" not in worker["spec"]
    assert pods()["worker"]["terminationGracePeriodSeconds"] > 120
    assert {"secretRef": {"name": "brimful"}} in pods()["worker"]["containers"][0]["envFrom"]
    assert "envFrom" not in pods()["flower"]["containers"][0]  # Flower needs no key
    assert not any(document["kind"] == "Secret" for document in documents())


def test_the_front_door_waits_for_its_first_token() -> None:
    found = {document["kind"]: document for document in documents() if document["metadata"]["name"].startswith("serve")}
    assert found["Deployment"]["spec"]["replicas"] == 0
    assert found["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}  # its volume has one writer
    pod = pods()["serve"]
    assert pod["terminationGracePeriodSeconds"] > 120
    assert pod["shareProcessNamespace"] is True
    [container] = pod["containers"]
    port = next(port["containerPort"] for port in container["ports"] if port["name"] == "http")
    assert container["args"] == ["serve", "--host", "0.0.0.0", "--port", str(port)]
    assert found["Service"]["spec"]["ports"][0]["port"] == port
    [claim] = [volume["persistentVolumeClaim"] for volume in pod["volumes"] if "persistentVolumeClaim" in volume]
    assert claim["claimName"] == found["PersistentVolumeClaim"]["metadata"]["name"]


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze") or pytest.skip("systemd-analyze is not installed")
    for path in [*UNITS, *(OPS / "systemd").glob("*.target")]:
        # The programs are not installed here; everything else is checked as it stands.
        text = re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", path.read_text("utf-8"))
        (tmp_path / path.name).write_text(text, "utf-8")
    files = [str(path) for path in sorted(tmp_path.iterdir()) if path.suffix in (".service", ".target")]
    done = subprocess.run([analyze, "verify", "--man=no", *files], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_run_as_an_unprivileged_user_and_keep_secrets_out_of_argv(path: Path) -> None:
    text = path.read_text("utf-8")
    for line in (
        "User=brimful",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "Restart=always",
        "CapabilityBoundingSet=",
    ):
        assert f"\n{line}\n" in text, line
    assert not re.search(r"(?m)^(ExecStart|Environment)=.*(KEY|PASSWORD|requirepass)", text)
    if "flower" in path.name:
        assert "brimful.env" not in text  # the file with the key
