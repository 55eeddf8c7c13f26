"""What ``make audit`` makes of pip-audit's report."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

_SPEC = importlib.util.spec_from_file_location("audit", Path(__file__).parents[2] / "ops" / "audit.py")
assert _SPEC is not None
assert _SPEC.loader is not None
audit = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(audit)

GOOD: dict[str, Any] = {"name": "good", "version": "1.0", "vulns": []}
BAD: dict[str, Any] = {"name": "bad", "version": "2.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1"]}]}
HOPELESS: dict[str, Any] = {"name": "old", "version": "0.1", "vulns": [{"id": "CVE-2", "fix_versions": []}]}
SKIPPED: dict[str, Any] = {"name": "unknown", "skip_reason": "Dependency not found on PyPI and could not be audited"}


@pytest.mark.parametrize(
    ("packages", "code", "said"),
    [
        ([GOOD], 0, "none of 1 packages has a known vulnerability"),
        ([GOOD, BAD, SKIPPED], 1, "bad 2.0: PYSEC-1, fixed in 2.1"),
        ([HOPELESS], 1, "fixed in no release"),
        ([GOOD, SKIPPED], 3, "1 of 2 packages are unknown to the database: unknown;"),
        ([SKIPPED], 3, "the database cannot be reached from here; nothing was looked up"),
        ([], 3, "nothing was looked up"),
    ],
)
def test_verdicts(packages: list[dict[str, Any]], code: int, said: str) -> None:
    found, lines = audit.verdict({"dependencies": packages})
    assert found == code
    assert said in "\n".join(lines)


def test_a_tool_that_says_nothing_has_looked_nothing_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    silent = tmp_path / "pip-audit"
    silent.write_text("#!/bin/sh\nexit 1\n")
    silent.chmod(0o755)
    assert audit.main(str(silent)) == 3
    assert "nothing was looked up" in capsys.readouterr().err
