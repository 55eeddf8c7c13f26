"""What every Python process of the tests imports first, so that its start takes less CPU: ``sitecustomize.py``."""

from __future__ import annotations

import os
from pathlib import Path


def python_path(folder: str | Path = "") -> str:
    """The PYTHONPATH of such a process: ``folder``, and this one."""
    return os.pathsep.join(str(each) for each in (folder, Path(__file__).parent) if each)
