"""docker-compose.yml and the Dockerfile: schemas, linters, scaling, confinement and secrets."""

from __future__ import annotations

import fnmatch
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "ops" / "Dockerfile"


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text("utf-8"))["services"]
    return loaded


def tool(name: str) -> str:
    """A console script beside this Python, or on the path."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    return found or pytest.skip(f"{name} is not installed")


def check(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_compose_file_matches_the_specification() -> None:
    check(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(COMPOSE))


def test_all_yaml_passes_yamllint() -> None:
    check(tool("yamllint"), "--strict", "-c", "ops/yamllint.yml", "docker-compose.yml", "ops")


def test_the_dockerfile_is_clean() -> None:
    check(tool("hadolint"), str(DOCKERFILE))


def test_every_image_is_a_setting_that_takes_a_digest(services: dict[str, dict[str, Any]]) -> None:
    images = {service["image"] for service in services.values()}
    assert {re.fullmatch(r"\$\{([A-Z]+)_IMAGE:-[\w./-]+:[\w.-]+\}", image)[1] for image in images} == {  # type: ignore[index]
        *("BRIMFUL", "VALKEY", "PROMETHEUS", "GRAFANA")
    }
    [base] = {service["build"]["args"]["BASE"] for service in services.values() if "build" in service}
    stages = set(re.findall(r"(?m)^FROM (\S+)", DOCKERFILE.read_text("utf-8")))
    assert (base.partition(":-")[0], stages) == ("${PYTHON_IMAGE", {"${BASE}"})


def test_workers_scale_by_a_number(services: dict[str, dict[str, Any]]) -> None:
    worker = services["worker"]
    assert "container_name" not in worker
    assert "ports" not in worker  # two replicas cannot publish one port
    assert "hostname" not in worker
    assert worker["deploy"]["replicas"] >= 2
    assert "healthcheck" in worker
    assert int(worker["stop_grace_period"].removesuffix("s")) > 120  # a request may take BRIMFUL_TIMEOUT_S


def test_every_service_is_confined(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        assert "no-new-privileges:true" in service["security_opt"], name
        assert service["cap_drop"] == ["ALL"], name
        assert name == "grafana" or service["read_only"], name
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), f"{name} is open to the world"


def test_secrets_are_passed_only_by_the_environment(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        environment = service.get("environment", {})
        if "ACS_API_KEY" in environment:
            assert environment["ACS_API_KEY"] is None, f"{name}: passed through, never written down"
        assert "PASSWORD}" not in json.dumps(service.get("command", "")).replace("$$", ""), name
    assert "ACS_API_KEY" not in services["flower"].get("environment", {})
    assert "env_file" not in services["flower"]


def test_every_process_learns_of_another_broker(services: dict[str, dict[str, Any]]) -> None:
    for name in ("worker", "serve", "flower", "cli"):
        assert services[name]["environment"].get("BRIMFUL_BROKER_URL", "") is None, f"{name}: passed through"


def test_optional_parts_are_profiles(services: dict[str, dict[str, Any]]) -> None:
    assert {name for name, service in services.items() if "profiles" not in service} == {"valkey", "worker", "flower"}
    assert services["gateway"]["profiles"] == ["rehearsal"]
    rehearsal = (ROOT / "ops" / "rehearsal.env").read_text("utf-8")
    port = services["gateway"]["command"][-1]
    assert f"ACS_API_BASE=http://gateway:{port}/v1\n" in rehearsal


def test_the_front_door_is_a_profile_whose_files_are_on_a_volume(services: dict[str, dict[str, Any]]) -> None:
    """It would end at once without a caller's token, so it does not start with the others."""
    serve = services["serve"]
    assert serve["profiles"] == ["serve"]
    [mount] = [volume for volume in serve["volumes"] if volume.startswith("serve-data:")]
    assert serve["environment"]["BRIMFUL_SERVE_DATA"].startswith(mount.removeprefix("serve-data:"))
    assert int(serve["stop_grace_period"].removesuffix("s")) > 120  # a request may take BRIMFUL_TIMEOUT_S
    [port] = serve["ports"]
    assert port.endswith(f":{serve['command'][-1]}")


def test_every_mounted_file_exists(services: dict[str, dict[str, Any]]) -> None:
    for service in services.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("./"):
                assert (ROOT / source).exists(), source


def test_the_image_copies_only_files_of_the_build_context() -> None:
    ignore = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert "*" in ignore
    assert not any(fnmatch.fnmatch(".env", line.lstrip("!")) for line in ignore if line.startswith("!"))
    kept = [line[1:] for line in ignore if line.startswith("!")]
    for line in DOCKERFILE.read_text("utf-8").splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists(), source
                assert any(source == name or source.startswith(f"{name}/") for name in kept), source


def test_the_image_runs_as_an_unprivileged_user() -> None:
    text = DOCKERFILE.read_text("utf-8")
    final = text[text.rindex("\nFROM ") :]
    assert re.search(r'^ENTRYPOINT \["brimful"\]$', final, re.M)
    user = re.search(r"^USER (\d+):", final, re.M)
    assert user is not None
    assert int(user[1]) >= 1000
    assert "PIP_CONSTRAINT=/src/constraints.txt" in text


def test_the_images_licence_is_the_projects() -> None:
    licence = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["license"]
    assert f'org.opencontainers.image.licenses="{licence}"' in DOCKERFILE.read_text("utf-8")


def test_the_worker_is_nowhere_process_1_of_its_container(services: dict[str, dict[str, Any]]) -> None:
    """The guardian could not kill it."""
    assert services["worker"]["init"] is True
    [pod] = [
        document["spec"]["template"]["spec"]
        for document in yaml.safe_load_all((ROOT / "ops" / "k8s" / "base" / "worker.yaml").read_text("utf-8"))
        if document["kind"] == "Deployment"
    ]
    assert pod["shareProcessNamespace"] is True
    for page in (DOCKERFILE, ROOT / "docs" / "operating.md", ROOT / "README.md"):
        for line in page.read_text("utf-8").splitlines():
            assert "docker run " not in line or "docker run --init " in line, page
