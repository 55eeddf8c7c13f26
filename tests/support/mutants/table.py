"""Which tests concern which module, which faults change nothing, and the sample of a run."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from support.mutants.fault import Edit, Fault, faults_of
from support.mutants.lua_faults import lua_edits
from support.mutants.python_faults import python_edits

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


@dataclass(frozen=True, slots=True)
class Group:
    """Modules of one subject, and the tests that must notice a fault in them: quick ones first."""

    name: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]
    slow: bool
    """Too slow for a sample of what has changed."""


def groups() -> list[Group]:
    listed = tomllib.loads((HERE / "modules.toml").read_text("utf-8"))
    return [
        Group(name, tuple(group["modules"]), tuple(group["tests"]), group.get("slow", False))
        for name, group in listed.items()
    ]


def slow(path: str) -> bool:
    return any(group.slow for group in groups() if path in group.modules)


def tests_of(path: str) -> tuple[str, ...]:
    """Empty for a module that no group names."""
    return next((group.tests for group in groups() if path in group.modules), ())


def modules(patterns: list[str]) -> list[str]:
    """Those whose path, name or group is one of the patterns (``*`` for anything); all without patterns."""
    found = []
    for group in groups():
        for path in group.modules:
            names = (path, Path(path).name, Path(path).stem, group.name)
            if not patterns or any(fnmatch(name, pattern) for name in names for pattern in patterns):
                found.append(path)
    return found


def faults_in(path: str) -> list[Fault]:
    source = (ROOT / path).read_bytes()
    edits: list[Edit] = lua_edits(source) if path.endswith(".lua") else python_edits(source)
    return faults_of(path, source, edits)


def sample(path: str, seed: int, count: int) -> list[Fault]:
    """So many faults of the module, the same for the same seed, in the order of the file."""
    chosen = sorted(faults_in(path), key=lambda fault: fault.rank(seed))[:count]
    return sorted(chosen, key=lambda fault: fault.edit)


def equivalents() -> dict[tuple[str, str, str], str]:
    """(path, line before, line after) → why no test can notice it."""
    listed = tomllib.loads((HERE / "equivalent.toml").read_text("utf-8"))
    return {
        (entry["path"], " ".join(entry["before"].split()), " ".join(entry["after"].split())): entry["why"]
        for entry in listed.get("fault", [])
    }
