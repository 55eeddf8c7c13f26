"""constraints-hashed.txt: the versions of constraints.txt, each with hashes, and no address."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
HASHED = (ROOT / "constraints-hashed.txt").read_text("utf-8").replace("\\\n", " ")


def pins(text: str) -> dict[str, str]:
    return dict(re.findall(r"(?m)^([\w.-]+)==([^\s;]+)", text))


def test_the_versions_are_those_of_the_constraints() -> None:
    constraints = pins((ROOT / "constraints.txt").read_text("utf-8"))
    hashed = pins(HASHED)
    assert {"celery", "aiohttp", "redis", "uvloop"} <= set(hashed)
    # Packages of other systems, such as Windows's, are in no environment from which the constraints were made.
    assert {name: version for name, version in hashed.items() if constraints.get(name, version) != version} == {}


def test_every_package_has_hashes_and_there_is_no_address() -> None:
    lines = [line for line in HASHED.splitlines() if line.strip()]
    for line in lines:
        assert re.fullmatch(r"[\w.-]+(\[[\w,-]+\])?==[^ ]+( ; [^-]+)?(\s+--hash=sha256:[0-9a-f]{64})+\s*", line), line[
            :80
        ]
    assert "://" not in HASHED
