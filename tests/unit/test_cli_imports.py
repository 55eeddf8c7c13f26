"""What importing the package and starting the command loads."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Any

import pytest

import brimful
from brimful.outcome import Outcome
from brimful.profile import get_profile
from brimful.request import Request
from brimful.runtime.port import bind


def _run(code: str) -> str:
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    return done.stdout.strip()


def test_every_public_name_can_be_imported() -> None:
    for name in brimful.__all__:
        assert getattr(brimful, name) is not None
    assert set(brimful.__all__) <= set(dir(brimful))
    with pytest.raises(AttributeError, match="nothing"):
        _ = brimful.nothing  # type: ignore[attr-defined]


def test_the_command_and_the_package_import_little() -> None:
    heavy = {"celery", "kombu", "redis", "pydantic", "typer", "rich", "asyncio"}
    assert not heavy & set(_run("import brimful, brimful.cli, sys; print(*sys.modules)").split())


def test_the_garbage_collector_does_not_walk_what_a_command_imports_again_and_again() -> None:
    code = (
        "import gc, sys; from brimful.cli import main; sys.argv[1:] = ['run', '--help']\n"
        "before = gc.get_stats()[0]['collections']\n"
        "try: main()\n"
        "except SystemExit: print(gc.get_stats()[0]['collections'] - before, gc.isenabled())"
    )
    walks, enabled = _run(code).splitlines()[-1].split()
    assert int(walks) < 10
    assert enabled == "True"


def test_the_tasks_import_little_beside_celery() -> None:
    """What is left takes hundredths of a second; pydantic alone takes longer, and comes with the first request."""
    code = "from brimful import sample, app; import sys; print(*sys.modules)"
    assert not {"pydantic", "dotenv", "typer", "aiohttp", "brimful.config"} & set(_run(code).split())


def test_celery_finds_the_app_with_its_tasks() -> None:
    code = "from celery.app.utils import find_app; print(*sorted(find_app('brimful').tasks))"
    assert {"brimful.sample", "brimful.shard"} <= set(_run(code).split())


def test_a_task_accepts_its_request_by_keyword() -> None:
    class Fake:
        parsed: Any = None

        async def sample(self, raw: Any, fields: dict[str, Any]) -> Outcome:
            self.parsed = Request.parse(raw, get_profile("acs"), **fields)
            return Outcome("r", completion={"choices": []})

    port = Fake()
    bind(port)  # type: ignore[arg-type]
    try:
        for args, kwargs in (((), {"request": {"prompt": "a"}, "n": 1}), (("a",), {"n": 1}), ((), {"prompt": "a"})):
            assert asyncio.run(brimful.sample.run(*args, **kwargs))["choices"] == []
            assert port.parsed.prompts == ["a"]
    finally:
        bind(None)
