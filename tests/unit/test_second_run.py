"""Tests that failed beside others run once more, alone; those of the limits never do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.limit_tests import limit_tests
from support.second_run import final

TESTS = Path(__file__).parents[1]
INI = "[pytest]\nmarkers = limits: of the limits\naddopts = --strict-markers -p no:cacheprovider -p xdist.plugin\n"
SECOND_TIME = "    Path('{0}').open('a').write('.')\n    assert len(Path('{0}').read_text()) > 1\n"


def run(directory: Path, source: str) -> subprocess.CompletedProcess[str]:
    (directory / "pytest.ini").write_text(INI)
    (directory / "test_it.py").write_text(f"import pytest\nfrom pathlib import Path\n\n{source}")
    program = [sys.executable, TESTS / "support/second_run.py", "-n 0", "test_it.py"]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # to import them all takes a second
    return subprocess.run(program, cwd=directory, env=env, capture_output=True, text=True, timeout=120)


def test_what_fails_beside_others_and_passes_alone_is_named_and_ends_well(tmp_path: Path) -> None:
    late = "@pytest.mark.parametrize('x', ['a::b [c]'])\ndef test_late(x):\n" + SECOND_TIME.format("late")
    done = run(tmp_path, late + "\ndef test_good():\n    Path('good').open('a').write('.')\n")
    assert done.returncode == 0, done.stdout
    assert "failed beside others, passed alone: test_it.py::test_late[a::b [c]]" in done.stdout
    assert (tmp_path / "good").read_text() == ".", "only what failed is tried again"


def test_what_fails_again_fails(tmp_path: Path) -> None:
    done = run(tmp_path, f"def test_late():\n{SECOND_TIME.format('late')}\ndef test_bad():\n    assert 0\n")
    assert done.returncode == 1, done.stdout
    assert "failed alone too: test_it.py::test_bad" in done.stdout
    assert "failed beside others, passed alone: test_it.py::test_late" in done.stdout, "each is named by its own end"


def test_a_test_of_the_limits_is_not_tried_again(tmp_path: Path) -> None:
    done = run(tmp_path, f"@pytest.mark.limits\ndef test_late():\n{SECOND_TIME.format('late')}")
    assert done.returncode == 1, done.stdout
    assert "a test of the limits failed, which is never tried again: test_it.py::test_late" in done.stdout
    assert (tmp_path / "late").read_text() == "."


def test_a_test_of_the_limits_whose_wait_ended_has_counted_nothing(tmp_path: Path) -> None:
    wait = f"import sys\n\nsys.path.insert(0, {str(TESTS)!r})\nfrom support.waiting import wait_until\n\n\n"
    late = (
        "    Path('late').open('a').write('.')\n    wait_until(lambda: len(Path('late').read_text()) > 1, 'it', 0.0)\n"
    )
    done = run(tmp_path, f"{wait}@pytest.mark.limits\ndef test_late():\n{late}")
    assert done.returncode == 0, done.stdout
    assert "failed beside others, passed alone: test_it.py::test_late" in done.stdout


def test_which_failures_are_final() -> None:
    few = dict.fromkeys("abcde", False)
    assert final(few, []) == ""
    assert final(few | {"f": False}, []) == "6 tests failed; at most 5 are tried again"
    assert final({"a": False, "b": True}, []).endswith("never tried again: b")
    assert final(few, ["test_x.py"]) == "not collected: test_x.py"
    assert final({}, []), "another plugin has failed the run"


def test_tests_that_assert_the_limits_have_the_marker(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(
        "def check(x): assert x.peak_active <= 16\n"
        "def test_direct(x): assert x['most_in_window'] <= 600\n"
        "def test_through_a_helper(x): check(x)\n"
        "class TestAll:\n    def test_inside(self, x): check(x)\n"
        "def test_other(x): assert x.peak\n"
    )
    assert limit_tests(file) == {"check", "test_direct", "test_through_a_helper", "TestAll"}
    found = limit_tests(TESTS / "integration/test_admission_faults.py")
    assert {"test_half_the_fleet_is_killed_again_and_again", "test_a_stale_replica_is_promoted"} <= found
    assert request.node.get_closest_marker("limits"), "this one names what they assert"
