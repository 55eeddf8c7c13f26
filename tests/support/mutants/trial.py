"""Tries faults in copies of the tree, two at a time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from support.mutants.fault import Fault

LANES = 2
_PATIENCE_S = 60.0
"""A run may last so much longer than four times what it lasted without a fault."""
_BASELINE_S = 1800.0


@dataclass(frozen=True, slots=True)
class Result:
    fault: Fault
    outcome: str
    """"failed" (a test has noticed it), "timeout" (they do not end), "passed" (it has survived)."""
    seconds: float
    by: str
    """The test that failed first."""

    @property
    def caught(self) -> bool:
        return self.outcome != "passed"


class Lane:
    """A copy of the tree, and the process that runs tests in it."""

    def __init__(self, root: Path, copy: Path) -> None:
        self._copy = copy
        self._baselines: dict[tuple[str, ...], float] = {}
        copy_tree(root, copy)
        own = Path(__file__).parents[2]  # where a tree has no mutation runs itself
        sources = os.pathsep.join(map(str, (copy / "tests", copy / "tasks", copy / "workers", own)))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.mutants.lane", str(copy)],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": sources},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def try_fault(self, fault: Fault, tests: tuple[str, ...]) -> Result:
        if tests not in self._baselines:
            for learn in (True, False):  # what was imported for later runs must not make these fail
                answer = self._run(tests, _BASELINE_S, learn=learn)
                if answer["outcome"] != "passed":
                    raise SystemExit(f"without a fault, {answer['outcome']}: {answer['by']} ({self._copy}/.output)")
            self._baselines[tests] = answer["seconds"]
        file = self._copy / fault.path
        source = file.read_bytes()
        file.write_bytes(fault.applied_to(source))
        try:
            answer = self._run(tests, 4 * self._baselines[tests] + _PATIENCE_S)
        finally:
            file.write_bytes(source)
        return Result(fault, answer["outcome"], answer["seconds"], answer["by"])

    def close(self) -> None:
        with self._process:  # closes its pipes, and waits for its end
            pass

    def _run(self, tests: tuple[str, ...], timeout_s: float, *, learn: bool = False) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps({"tests": tests, "timeout": timeout_s, "learn": learn}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit("the process that runs the tests has ended")
        found: dict[str, Any] = json.loads(answer)
        return found


def copy_tree(root: Path, copy: Path) -> None:
    """All files that git knows or would add. Modules are compiled to be checked by content."""
    shutil.rmtree(copy, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode().split("\0"):
        if name and (root / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, copy / name)
    compiled = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "tasks", "workers"]
    subprocess.run([sys.executable, *compiled], cwd=copy, check=True)


def try_all(
    root: Path, work: Path, trials: Iterable[tuple[Fault, tuple[str, ...]]], note: Callable[[Result], None]
) -> list[Result]:
    """Results in the order of the trials. ``note`` gets each as it comes."""
    lanes: SimpleQueue[Lane] = SimpleQueue()
    opened = [Lane(root, work / f"copy{i}") for i in range(LANES)]
    for lane in opened:
        lanes.put(lane)

    def one(trial: tuple[Fault, tuple[str, ...]]) -> Result:
        lane = lanes.get()
        try:
            result = lane.try_fault(*trial)
        finally:
            lanes.put(lane)
        note(result)
        return result

    try:
        with ThreadPoolExecutor(LANES) as pool:
            return list(pool.map(one, trials))
    finally:
        for lane in opened:
            lane.close()
