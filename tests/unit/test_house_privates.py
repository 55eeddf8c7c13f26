"""Tests use what the source offers: none names a private part, which a move or a rename of it would break."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from support import house

TESTS = Path(__file__).parents[1]
EXCEPTIONS: Mapping[tuple[str, str], str] = {
    ("integration/test_client_fork.py", "_exit"): "os._exit, in the code of another process",
    ("unit/test_broker_upstream.py", ""): "watches the private parts of kombu and celery that the broker uses",
    ("unit/test_local_fleet_parts.py", "_on_update"): "watches a private part of flower's",
    ("unit/test_provider_upstream.py", ""): "watches the private parts of aiohttp that the provider's connector uses",
    ("unit/test_redis_address.py", "_connparams"): "kombu's, which shows how it reads the address",
}
"""File and name ("" = all) → why. Other packages' privates need none, unless the source has one of that name too."""
HINT = "use a return value, a key in Redis, a metric or the log, or give the source a public seam"
_BY_NAME = {"setattr", "getattr", "delattr", "hasattr", "attrgetter", "methodcaller"}
_MAY_NAME = (ast.ImportFrom, ast.Attribute, ast.ClassDef, ast.Call, ast.Constant)
_IN_CODE = re.compile(r"(?<=[\w)\]])\.(_[a-zA-Z]\w*)")
"""In a string: a dotted name, or the code of another process."""


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def _defined(tree: ast.AST) -> set[str]:
    """The private names that functions, classes and assignments define."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                found.add(name)
    return {name for name in found if _private(name)}


@cache
def _of_the_source() -> frozenset[str]:
    return frozenset().union(*(_defined(ast.parse(file.read_text("utf-8"))) for file in house.modules().values()))


@cache
def _of_support() -> frozenset[str]:
    return frozenset().union(*(_own(ast.parse(file.read_text("utf-8"))) for file in TESTS.glob("support/**/*.py")))


def _own(tree: ast.AST) -> set[str]:
    """The private attributes of the classes that the file itself defines."""
    found = set()
    for each in ast.walk(tree):
        if isinstance(each, ast.ClassDef):
            for node in ast.walk(each):
                match node:
                    case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                        found.add(name)
                    case ast.Name(id=name, ctx=ast.Store()):
                        found.add(name)
                    case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                        found.add(name)
    return found


def _imported(tree: ast.AST) -> dict[str, str]:
    """Name in the file → the package that it is imported from."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found |= {(one.asname or one.name).split(".")[0]: one.name.split(".")[0] for one in names}
            case ast.ImportFrom(module=str(module), names=names):
                found |= {one.asname or one.name: module.split(".")[0] for one in names}
    return found


def _root(node: ast.expr) -> str | None:
    """The name that a chain of attributes, calls and indices begins with."""
    while not isinstance(node, ast.Name):
        match node:
            case ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.Call(func=inner):
                node = inner
            case _:
                return None
    return node.id


def privates_named(code: str) -> Iterator[tuple[int, str]]:
    """Line and name of each private of the source that a test's code names."""
    tree = ast.parse(code)
    theirs, own, imported = _of_the_source(), _own(tree), _imported(tree)
    packages = {name: package for name, package in imported.items() if package != "support"}

    def may_be_theirs(node: ast.expr, name: str) -> bool:
        """Whether this attribute may be the source's."""
        if name in own or (isinstance(node, ast.Name) and node.id == "self" and name in _of_support()):
            return False
        return packages.get(_root(node) or "") in (None, *house.ROOTS)

    for node in ast.walk(tree):
        if not isinstance(node, _MAY_NAME):
            continue
        named: list[str] = []
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] in house.ROOTS:
                named = [one.name for one in names]
            case ast.Attribute(value=value, attr=name) if may_be_theirs(value, name):
                named = [name]
            case ast.ClassDef(bases=bases, body=body) if any(
                packages.get(_root(b) or "") in house.ROOTS for b in bases
            ):
                named = [each.name for each in body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))]
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=args) if called in _BY_NAME:
                named = [arg.value for arg in args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            case ast.Constant(value=str(text)):
                named = _IN_CODE.findall(text)
        yield from ((node.lineno, name) for name in named if name in theirs)


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("from brimful.client import fleet\nfleet.Fleet()._app.conf", [(2, "_app")]),
        ("from brimful.dispatch.driver import _CLOSE_S", [(1, "_CLOSE_S")]),
        ("monkeypatch.setattr(driver, '_CLOSE_S', 1)", [(1, "_CLOSE_S")]),
        ("monkeypatch.setattr('brimful.dispatch.driver._CLOSE_S', 1)", [(1, "_CLOSE_S")]),
        ("CODE = 'from brimful import Fleet; Fleet()._app'", [(1, "_app")]),
        ("from brimful import Fleet\nclass Mine(Fleet):\n    def _send(self): ...", [(2, "_send")]),
        ("import celery\ncelery.Celery()._app", []),
        ("class Mine:\n    def __init__(self):\n        self._app = 1\nMine()._app", []),
    ],
)
def test_what_counts_as_named(code: str, named: list[tuple[int, str]]) -> None:
    assert list(privates_named(code)) == named


def test_no_test_names_a_private_of_the_source() -> None:
    used, wrong = set(), []
    for file in sorted(TESTS.rglob("*.py")):
        if file != Path(__file__):
            for line, name in privates_named(file.read_text("utf-8")):
                place = str(file.relative_to(TESTS))
                excepted = EXCEPTIONS.keys() & {(place, name), (place, "")}
                used |= excepted
                if not excepted:
                    wrong.append(f"{file.relative_to(TESTS.parent)}:{line} names {name}")
    assert not wrong, "\n".join([*wrong, HINT])
    assert not EXCEPTIONS.keys() - used, "not needed any more"
