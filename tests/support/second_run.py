"""Runs all tests beside each other; then those that failed, if they are few, once more, alone and one at a time.

``python tests/support/second_run.py "OPTIONS OF THE FIRST RUN" PYTEST ARGUMENTS``, as ``make test`` does. The name of a
test that failed beside others and passes alone is printed at the end, so that somebody corrects it, and the exit code
is 0. It stays 1 where more than :data:`MOST` tests failed, where one fails again, where a file could not be collected,
and where an assertion of a test of the limits failed (marker ``limits``): one request too many is a fault, however
seldom it is seen. Such a test whose wait ended, or that another test's leftovers disturbed, has counted nothing.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

MOST = 5
LIMITS = "limits"


class Failures:
    """A plugin of the first run, in its main process."""

    def __init__(self) -> None:
        self.tests: dict[str, bool] = {}
        """By the test's id: whether an assertion about the limits may have failed."""
        self.not_collected: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.tests[report.nodeid] = LIMITS in report.keywords and asserted(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.not_collected.append(report.nodeid)


def asserted(report: pytest.TestReport) -> bool:
    """Whether an assertion failed, or nothing says what did."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return crash is None or crash.message.startswith(("assert", "AssertionError"))


def final(tests: Mapping[str, bool], not_collected: Sequence[str]) -> str:
    """Why these failures are not tried again; empty if they are."""
    if not_collected:
        return f"not collected: {', '.join(not_collected)}"
    if of_limits := [test for test, limits in tests.items() if limits]:
        return f"a test of the limits failed, which is never tried again: {', '.join(of_limits)}"
    if len(tests) > MOST:
        return f"{len(tests)} tests failed; at most {MOST} are tried again"
    return "" if tests else "no test failed, but the run did"


def main(beside: str, arguments: Sequence[str]) -> int:
    sys.path[0] = str(Path.cwd())  # as `python -m pytest` does
    failures = Failures()
    code = int(pytest.main([*arguments, *shlex.split(beside)], plugins=[failures]))
    if code != pytest.ExitCode.TESTS_FAILED:
        return code
    if reason := final(failures.tests, failures.not_collected):
        _say(f"FAILED: {reason}")
        return code
    _say(*[f"failed beside others: {test}" for test in failures.tests], "once more, alone and one at a time:")
    codes = {test: subprocess.call([sys.executable, "-m", "pytest", "-n", "0", test]) for test in failures.tests}
    alone = {test: "failed alone too" if code else "failed beside others, passed alone" for test, code in codes.items()}
    _say(*[f"{outcome}: {test}" for test, outcome in alone.items()])
    return max(codes.values())


def _say(*lines: str) -> None:
    rule = "=" * 120
    print(f"\n{rule}", *lines, rule, sep="\n", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
