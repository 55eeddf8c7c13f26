"""A mutation run as a whole, in a small tree of its own; and that faults of the scripts compile."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import redis

from brimful_worker.admission.wire.rpc import exchange, with_parts
from brimful_worker.local.server.valkey import Valkey
from support.mutants.fault import faults_of
from support.mutants.python_faults import python_edits
from support.mutants.table import ROOT, modules, sample
from support.mutants.trial import Result, try_all

SOURCE = """\
def most(limit, asked):
    if asked > limit:
        return limit
    return max(asked, 0)
"""
TESTS = """\
from most import most


def test_most():
    assert most(3, 9) == 3
    assert most(3, -1) == 0
"""


def test_a_run_tells_the_faults_that_tests_notice_from_those_that_they_do_not(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name, text in {"tasks/most.py": SOURCE, "workers/none.py": "", "tests/test_most.py": TESTS}.items():
        (tree / name).parent.mkdir(parents=True)
        (tree / name).write_text(text)
    (tree / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    subprocess.run(["git", "init", "-q"], cwd=tree, check=True)
    faults = faults_of("tasks/most.py", SOURCE.encode(), python_edits(SOURCE.encode()))
    wanted = ("if asked >= limit:", "if asked <= limit:", "return None", "return max(asked, 1)")
    noted: list[Result] = []
    trials = [(fault, ("tests/test_most.py",)) for fault in faults if fault.after in wanted]
    results = try_all(tree, tmp_path / "work", trials, noted.append)
    assert [(result.fault.line, result.fault.after, result.outcome) for result in results] == [
        (2, "if asked <= limit:", "failed"),
        (2, "if asked >= limit:", "passed"),
        (3, "return None", "failed"),
        (4, "return None", "failed"),
        (4, "return max(asked, 1)", "failed"),
    ]
    assert all(result.by == "tests/test_most.py::test_most" for result in results if result.caught)
    assert len(noted) == len(results)
    assert (tree / "tasks/most.py").read_text() == (tmp_path / "work/copy0/tasks/most.py").read_text() == SOURCE


@pytest.mark.compat
def test_each_fault_of_a_script_compiles(valkey: Valkey) -> None:
    text = exchange().text
    with redis.Redis.from_url(valkey.url) as client:
        for path in modules(["admission-script*"]):
            part = (ROOT / path).read_bytes()
            whole = with_parts(part.decode())
            assert whole in text
            for fault in sample(path, 1, 40):
                changed = text.replace(whole, with_parts(fault.applied_to(part).decode()))
                assert changed != text
                client.script_load(changed)
