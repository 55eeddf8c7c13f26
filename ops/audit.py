"""``make audit``: looks the versions of constraints-hashed.txt up among the known vulnerabilities, with pip-audit.

``python ops/audit.py PIP_AUDIT``. pip-audit itself succeeds where its database is not reachable, or does not know a
package: it skips it. Here that is a failure of its own.

Exit codes: 0 no vulnerability is known · 1 some are · 3 not all packages could be looked up, and of the others none has
one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

REQUIREMENTS = Path(__file__).parents[1] / "constraints-hashed.txt"
NONE, SOME, UNKNOWN = 0, 1, 3
_DATABASES = ("pypi", "osv")
"""Tried in turn."""
_NAMES = 5
_TIMEOUT_S = 300.0


def main(pip_audit: str) -> int:
    code, lines = UNKNOWN, [f"{pip_audit}: no database was asked"]
    for database in _DATABASES:
        code, lines = verdict(_ask(pip_audit, database))
        if code != UNKNOWN:
            break
    print("\n".join(lines), file=sys.stderr if code else sys.stdout)
    return code


def verdict(report: dict[str, Any] | None) -> tuple[int, list[str]]:
    """The exit code, and what to print. ``report``: pip-audit's, None if it could not make one."""
    packages = (report or {}).get("dependencies", [])
    found = [
        f"{package['name']} {package['version']}: {one['id']}, fixed in "
        f"{', '.join(one['fix_versions']) or 'no release'}"
        for package in packages
        for one in package.get("vulns", ())
    ]
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    if found:
        return SOME, [*found, f"make audit: {len(found)} known vulnerabilities"]
    if not packages or len(skipped) == len(packages):
        return UNKNOWN, ["make audit: the database cannot be reached from here; nothing was looked up"]
    if skipped:
        shown = ", ".join(skipped[:_NAMES]) + (", …" if len(skipped) > _NAMES else "")
        return UNKNOWN, [
            f"make audit: {len(skipped)} of {len(packages)} packages are unknown to the database: {shown}; "
            "none of the others has a known vulnerability"
        ]
    return NONE, [f"make audit: none of {len(packages)} packages has a known vulnerability"]


def _ask(pip_audit: str, database: str) -> dict[str, Any] | None:
    command = [pip_audit, "-r", str(REQUIREMENTS), "--require-hashes", "--disable-pip", "-f", "json", "-s", database]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)  # noqa: S603  # of the Makefile
        report: dict[str, Any] = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return None
    return report


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
