"""The peers' own virtual environment, made once: some of them need a newer Python than brimful does."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
_WANTED = ("3.13", "3.14", "3.12")


def newest_python() -> str:
    """A Python of about 3.13 on the path or under pyenv; else the one that runs this."""
    roots = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in _WANTED:
        candidates = [shutil.which(f"python{version}"), *map(str, sorted(roots.glob(f"{version}.*/bin/python")))]
        for candidate in filter(None, candidates):
            if subprocess.run([candidate, "-c", "import ensurepip, ssl"], capture_output=True).returncode == 0:
                return candidate
    return sys.executable


def python_with(requirements: Path, directory: Path, base: str | None = None) -> Path:
    """The Python of an environment with these requirements, made from ``base`` (default: ``newest_python()``).

    It is made again when the requirements have changed.

    Raises:
        subprocess.CalledProcessError: They cannot be installed.
    """
    python = directory / "bin" / "python"
    stamp = directory / "requirements.sha256"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if not (python.exists() and stamp.exists() and stamp.read_text() == digest):
        shutil.rmtree(directory, ignore_errors=True)
        subprocess.run([base or newest_python(), "-m", "venv", str(directory)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, "-r", str(requirements)], check=True)
        stamp.write_text(digest)
    return python


def pinned_packages(directory: Path, name: str) -> Path:
    """A folder with one pinned peer and what it needs, for the Python that runs this; filled once a version."""
    line = next(line for line in REQUIREMENTS.read_text("utf-8").splitlines() if line.startswith(f"{name}=="))
    folder = directory / line
    if not folder.exists():
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, "--target", str(folder), line], check=True)
    return folder


def node_packages(directory: Path) -> Path:
    """The ``node_modules`` with the peers of ``package.json``; filled again when that has changed. Needs npm."""
    wanted = Path(__file__).with_name("package.json").read_bytes()
    here, stamp = directory / "package.json", directory / "installed.json"
    if not stamp.exists() or stamp.read_bytes() != wanted:
        directory.mkdir(parents=True, exist_ok=True)
        here.write_bytes(wanted)
        subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund"], cwd=directory, check=True)
        stamp.write_bytes(wanted)
    return directory / "node_modules"


def installed(python: str) -> dict[str, str]:
    """Package → version in the peers' environment."""
    code = (
        "import importlib.metadata as m, json;"
        "print(json.dumps({d.metadata['Name'].lower(): d.version for d in m.distributions()}))"
    )
    import json

    answer = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    versions: dict[str, str] = json.loads(answer.stdout)
    return versions
