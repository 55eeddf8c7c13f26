"""The house's own rules: what imports what, and what the wheel holds."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "tasks" / "brimful"
WORKER = ROOT / "workers" / "brimful_worker"


def _imports(file: Path) -> set[str]:
    tree = ast.parse(file.read_text("utf-8"))
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return names


def _run(code: str) -> str:
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    return done.stdout.strip()


def test_importing_the_client_pulls_in_no_worker() -> None:
    loaded = _run("import brimful, brimful.tasks, brimful.client.fleet, sys; print(*sys.modules)").split()
    heavy = {"aiohttp", "brimful_worker", "uvloop", "flower", "tornado", "orjson", "prometheus_client"}
    assert not heavy & set(loaded)


def test_importing_the_client_does_not_become_the_current_app() -> None:
    code = (
        "from celery import Celery, current_app; mine = Celery('mine'); import brimful.tasks; print(current_app.main)"
    )
    assert _run(code) == "mine"


@pytest.mark.parametrize("file", sorted(CLIENT.rglob("*.py")), ids=lambda file: str(file.relative_to(CLIENT)))
def test_the_client_never_imports_the_worker(file: Path) -> None:
    for name in _imports(file):
        assert name.split(".")[0] not in {"brimful_worker", "aiohttp", "tasks", "workers"}, f"{file} imports {name}"


@pytest.mark.parametrize("file", sorted(WORKER.rglob("*.py")), ids=lambda file: str(file.relative_to(WORKER)))
def test_nothing_imports_the_source_roots_as_packages(file: Path) -> None:
    assert not {name.split(".")[0] for name in _imports(file)} & {"tasks", "workers"}


def test_the_source_roots_are_no_packages() -> None:
    assert not (ROOT / "tasks" / "__init__.py").exists()
    assert not (ROOT / "workers" / "__init__.py").exists()


def test_the_wheel_holds_exactly_the_two_packages(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], cwd=ROOT, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"brimful", "brimful_worker"}
    for needed in ("brimful/py.typed", "brimful_worker/py.typed", "brimful/profiles.toml"):
        assert needed in names
    assert any(name.endswith(".lua") for name in names)


def test_the_plain_install_is_light() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    plain = {dependency.split(">")[0].split("[")[0] for dependency in project["dependencies"]}
    assert plain == {"celery", "pydantic", "pydantic-settings", "typer"}


def test_constraints_hold_names_and_versions_only() -> None:
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines():
        name, _, version = line.partition("==")
        assert name, line
        assert version, line
        assert "/" not in line, line


def test_public_names() -> None:
    import brimful

    assert sorted(brimful.__all__) == [
        "AsyncFleet", "BrimfulError", "Fleet", "Outcome", "Request", "Rollout", "Sampled", "app", "sample", "shard",
    ]  # fmt: skip


def test_the_readme_names_every_setting_and_its_own_commands() -> None:
    from brimful.config import Settings

    readme = (ROOT / "README.md").read_text("utf-8")
    for setting in Settings.model_fields:
        assert f"BRIMFUL_{setting.upper()}`" in readme, setting
    for words in ("make demo", "make test", "brimful run", "brimful up", "brimful worker", "brimful status"):
        assert words in readme
