"""The mutation runs' own parts: the faults that are found, their samples, and the table of modules."""

from __future__ import annotations

import ast

import pytest

from support.mutants.fault import Fault, faults_of
from support.mutants.lua_faults import lua_edits
from support.mutants.python_faults import python_edits
from support.mutants.table import ROOT, equivalents, groups, modules, sample


def changes(source: str, kind: str, *, lua: bool = False) -> list[str]:
    data = source.encode()
    edits = lua_edits(data) if lua else python_edits(data)
    return [fault.after for fault in faults_of("x", data, edits) if fault.kind == kind]


def test_faults_of_python() -> None:
    source = (
        "def f(a: int | None = 8, *, b: bool = True) -> int:\n"
        '    """Text 1."""\n'
        "    if a < 3 and b:  # and\n"
        "        self.x = 20\n"
        "        log.info('%s', 5)\n"
        "        return (a) + g(a is not None)\n"
    )
    assert changes(source, "comparison") == [
        "if a <= 3 and b: # and",
        "if a >= 3 and b: # and",
        "return (a) + g(a is None)",
    ]
    assert changes(source, "and/or") == ["if a < 3 or b: # and"]
    assert changes(source, "operator") == ["return (a) - g(a is not None)"]
    assert changes(source, "line dropped") == ["pass"]
    assert changes(source, "return value") == ["return None"]
    assert changes(source, "constant") == [
        "def f(a: int | None = 9, *, b: bool = True) -> int:",
        "def f(a: int | None = 8, *, b: bool = False) -> int:",
        "if a < 4 and b: # and",
        "self.x = 40",
    ]


def test_faults_of_lua() -> None:
    source = (
        "local limit = -1 -- a < b\n"
        "if not late and now - 5 <= limit then put('a < b', 20) end\n"
        "if free then return count + 1 end\n"
    )
    assert changes(source, "comparison", lua=True) == [
        "if not late and now - 5 < limit then put('a < b', 20) end",
        "if not late and now - 5 > limit then put('a < b', 20) end",
    ]
    assert changes(source, "not", lua=True) == [
        "if late and now - 5 <= limit then put('a < b', 20) end",
        "if not (free) then return count + 1 end",
    ]
    assert changes(source, "operator", lua=True) == [
        "if not late and now + 5 <= limit then put('a < b', 20) end",
        "if free then return count - 1 end",
    ]
    assert changes(source, "line dropped", lua=True) == [
        "if not late and now - 5 <= limit then end",
        "if free then end",
    ]
    assert changes(source, "return value", lua=True) == ["if free then return nil end"]
    assert changes(source, "constant", lua=True)[-2:] == [
        "if not late and now - 5 <= limit then put('a < b', 40) end",
        "if free then return count + 2 end",
    ]


@pytest.mark.parametrize("path", [path for path in modules([]) if path.endswith(".py")])
def test_each_fault_of_a_module_is_python(path: str) -> None:
    source = (ROOT / path).read_bytes()
    for fault in sample(path, 1, 20):
        changed = fault.applied_to(source)
        assert changed != source
        ast.parse(changed)


def test_a_sample_is_the_same_for_the_same_seed() -> None:
    path = modules([])[0]
    assert sample(path, 1, 10) == sample(path, 1, 10) != sample(path, 2, 10)
    assert set(sample(path, 1, 10)) < set(sample(path, 1, 20))


def test_a_sample_stays_when_other_lines_are_added() -> None:
    def chosen(source: bytes) -> list[tuple[str, str]]:
        faults: list[Fault] = faults_of("x", source, python_edits(source))
        return [(fault.before, fault.after) for fault in sorted(faults, key=lambda fault: fault.rank(1))]

    source = b"a.b = 1\nc.d = e < 2\n"
    more = chosen(b"x.y = z == 3\n" + source)
    assert [pair for pair in more if "x.y" not in pair[0]] == chosen(source)


def test_the_table_names_files_that_exist_once() -> None:
    every = [path for group in groups() for path in group.modules]
    assert len(every) == len(set(every))
    for group in groups():
        for path in (*group.modules, *group.tests):
            assert (ROOT / path).is_file(), f"modules.toml, [{group.name}]: {path}"


def test_each_fault_that_changes_nothing_is_of_a_module_and_has_a_reason() -> None:
    """A run names those that are no faults any more, since their lines have changed."""
    for key, why in equivalents().items():
        assert key[0] in modules([]), key
        assert len(why) > 20, key
