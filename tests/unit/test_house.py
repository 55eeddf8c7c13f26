"""The house's own rules: what imports what, and what the wheel holds."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from support import house

ROOT = Path(__file__).parents[2]
MOST_MODULES = 14
MOST_LINES = 300


def _run(code: str) -> str:
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    return done.stdout.strip()


def test_importing_the_client_pulls_in_no_worker() -> None:
    loaded = _run("import brimful, brimful.tasks, brimful.client.fleet, sys; print(*sys.modules)").split()
    heavy = {"aiohttp", "brimful_worker", "uvloop", "flower", "tornado", "prometheus_client"}
    assert not heavy & set(loaded)


def test_importing_the_client_does_not_become_the_current_app() -> None:
    code = (
        "from celery import Celery, current_app; mine = Celery('mine'); import brimful.tasks; print(current_app.main)"
    )
    assert _run(code) == "mine"


def test_no_import_goes_up() -> None:
    wrong = []
    for each in house.imports():
        here, there = house.room_of(each.module), house.room_of(each.target)
        if here == there or here.split(".")[0] != there.split(".")[0]:
            continue
        levels = house.rooms()[here][0], house.rooms()[there][0]
        if levels[1] >= levels[0]:
            wrong.append(f"{each}: {here} is on level {levels[0]}, {there} on level {levels[1]}")
    assert not wrong, "\n".join(wrong)


def test_the_client_never_imports_the_worker_and_the_worker_little_of_the_client() -> None:
    allowed = tuple(f"brimful.{name}" for name in house.WORKER_MAY_USE)
    wrong = []
    for each in house.imports():
        source, target = each.module.split(".")[0], each.target.split(".")[0]
        if source == "brimful" and target == "brimful_worker":
            wrong.append(str(each))
        if source == "brimful_worker" and target == "brimful":
            room = house.room_of(each.target)
            fits = room.startswith(allowed) or each.target in house.DISPATCH_MAY_USE
            if not fits:
                wrong.append(str(each))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", house.ROOTS)
def test_foreign_imports(package: str) -> None:
    forbidden = {"tasks", "workers"} | ({"aiohttp"} if package == "brimful" else set())
    for module, file in house.modules().items():
        if module.split(".")[0] == package:
            tree = ast.parse(file.read_text("utf-8"))
            names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
            names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
            assert not {name.split(".")[0] for name in names} & forbidden, module


def test_run_s_inner_rooms_do_not_import_its_top_files() -> None:
    inner = tuple(f"brimful.run.{room}." for room in ("input", "output", "display", "report", "checks"))
    wrong = []
    for each in house.imports():
        upwards = each.target.startswith("brimful.run.") and not each.target.startswith(inner)
        if each.module.startswith(inner) and upwards:
            wrong.append(str(each))
    assert not wrong, "\n".join(wrong)


def test_no_circles() -> None:
    assert not house.circles()


def test_every_module_lies_in_a_room() -> None:
    lost = [module for module in house.modules() if not house.room_of(module) and module != "brimful_worker"]
    assert not lost
    assert not [room for room in house.rooms() if room not in house.modules()]
    # the root of `brimful` holds the vocabulary, the app and the tasks, each a room of its own
    loose = [m for m in house.modules() if house.room_of(m) == "brimful" and m not in {"brimful", "brimful.__main__"}]
    assert not loose


def test_rooms_and_files_are_small() -> None:
    folders: dict[Path, int] = {}
    for file in house.modules().values():
        folders[file.parent] = folders.get(file.parent, 0) + (file.name != "__init__.py")
    assert not {str(folder): count for folder, count in folders.items() if count > MOST_MODULES}
    lines = {module: len(file.read_text("utf-8").splitlines()) for module, file in house.modules().items()}
    assert not {module: count for module, count in lines.items() if count > MOST_LINES}


def test_every_room_says_what_it_is() -> None:
    silent = [m for m, file in house.modules().items() if not ast.get_docstring(ast.parse(file.read_text("utf-8")))]
    assert not silent


@pytest.mark.parametrize("page", house.PAGES, ids=lambda page: page.name)
def test_the_pages_of_the_house_are_made_from_the_list(page: Path) -> None:
    text = page.read_text("utf-8")
    assert "<!-- levels -->" in text
    assert text == house.renewed(text, house.PARTS), "run: python tests/support/house.py"


def test_the_version_stands_in_one_place() -> None:
    import brimful

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["dynamic"] == ["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert re.findall(r"^## (\S+)", changelog, re.M)[0] == brimful.__version__


def test_the_source_roots_are_no_packages() -> None:
    assert not (ROOT / "tasks" / "__init__.py").exists()
    assert not (ROOT / "workers" / "__init__.py").exists()


def test_the_wheel_holds_exactly_the_two_packages(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], cwd=ROOT, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"brimful", "brimful_worker"}
    kinds = {".lua", ".toml", ".html", ".css", ".js", ".svg", ".typed"}
    data = [p for p in ROOT.glob("*/brimful*/**/*") if p.suffix in kinds]
    for file in data:
        assert "/".join(file.relative_to(ROOT).parts[1:]) in names, file
    assert {p.suffix for p in data} == kinds


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
        "AsyncFleet", "BrimfulError", "Fleet", "Group", "Handle", "Outcome", "Request", "Rollout", "Sampled", "app",
        "sample", "shard",
    ]  # fmt: skip
