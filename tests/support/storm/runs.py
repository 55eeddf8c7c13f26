"""``brimful run`` in a storm: it is killed, stopped and robbed of its output, and the same command is typed again."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from support.commands import command, records
from support.pool_worker import Background
from support.storm.machines import Machines
from support.storm.schedule import Event

N = 2
_LAST_LOOK_S = 3.0
"""A run that ends so soon after its output was touched may have looked at it for the last time before."""
_SHOWN = 5


@dataclass
class Attempt:
    """One process of a run."""

    started: Background
    began: float
    done_to_it: set[str] = field(default_factory=set)
    robbed_at: float = float("-inf")


class Runner:
    """Starts runs one after the other until the storm ends, then completes the last one."""

    def __init__(self, machines: Machines, name: str, lines: int, *options: str) -> None:
        self._machines = machines
        self._name = name
        self._lines = lines
        self._options = options
        self.findings: list[str] = []
        self.exits: Counter[int] = Counter()
        self.rollouts = 0
        self.failed_lines = 0
        self.finished = 0
        self._attempt: Attempt | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._main, name=f"storm-run-{name}", daemon=True)
        self._out = Path()

    def start(self) -> None:
        self._thread.start()

    @property
    def busy(self) -> bool:
        return self._thread.is_alive()

    def finish(self) -> None:
        """No further run is started; the one under way is resumed until it is complete."""
        self._over.set()

    def end(self) -> list[str]:
        """The findings. A run that is still under way is one."""
        if self.busy:
            self.findings.append(f"run {self._out.name} is not complete in the calm")
            with self._lock:
                if self._attempt is not None:
                    self._attempt.done_to_it.add("given up")
                    self._attempt.started.process.kill()
        self._thread.join(30)
        return self.findings

    # -- faults

    def apply(self, event: Event) -> None:
        what, _, of = event.kind.partition(" ")
        if of == "output":
            self._rob(what)
            return
        with self._lock:
            if (attempt := self._attempt) is None:
                return
            attempt.done_to_it.add(what)
            attempt.started.process.send_signal(signal.SIGKILL if what == "kill" else signal.SIGTERM)

    def _rob(self, how: str) -> None:
        out = self._out
        with self._lock:
            if self._attempt is None or not out.exists():
                return
            self._attempt.done_to_it.add("output")
            self._attempt.robbed_at = time.monotonic()
            if how == "remove":
                out.unlink()
            elif how == "replace":  # as sed -i
                copy = out.with_name("sed-copy")
                copy.write_bytes(b"".join(out.read_bytes().splitlines(keepends=True)[1:]))
                copy.replace(out)
            elif how == "cut":
                os.truncate(out, 0)
            else:
                shutil.move(out, out.with_name(f"{out.name}.elsewhere"))

    # -- its thread

    def _main(self) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            prompts = self._machines.directory / f"{self._name}-{number}.jsonl"
            self._out = prompts.with_suffix(".out.jsonl")
            ids = [f"{self._name}-{number}-{line}" for line in range(self._lines)]
            prompts.write_text("".join(json.dumps({"id": id, "prompt": f"line {id}"}) + "\n" for id in ids))
            self._complete(prompts, ids)

    def _complete(self, prompts: Path, ids: list[str]) -> None:
        retry: tuple[str, ...] = ()
        while True:
            arguments = ("run", str(prompts), "-o", str(self._out), "--n", str(N), "--max-tokens", "4", "--no-progress")
            line = command(*arguments, *self._options, *retry)
            log = self._out.with_suffix(f".{sum(self.exits.values())}.log")
            with Background(line, self._machines.env, log) as started:
                attempt = Attempt(started, time.monotonic())
                with self._lock:
                    self._attempt = attempt
                code = started.process.wait()
                with self._lock:
                    self._attempt = None
            self.exits[code] += 1
            if "given up" in attempt.done_to_it:
                return
            if why_not := self._unexpected(code, attempt):
                self.findings.append(f"run {self._out.name}: {why_not}: …{started.output[-1500:]}")
                return
            if code == 0 and time.monotonic() - attempt.robbed_at > _LAST_LOOK_S:
                self._audit(ids)
                return
            if code == 3 and not retry:
                self.failed_lines += sum(1 for _ in records(self._errors()))
            retry = ("--retry-errors",) if code == 3 else ()

    def _unexpected(self, code: int, attempt: Attempt) -> str:
        """Why this exit code is wrong; empty if what was done to the process explains it."""
        done, output = attempt.done_to_it, attempt.started.output
        away = self._machines.was_away(attempt.began - 5, time.monotonic())
        explained = {
            0: True,
            1: "output" in done and ".kept" in output,
            2: away and ("Redis" in output or "RabbitMQ" in output),  # it did not answer when the command was typed
            3: self._errors().exists(),
            130: "stop" in done,
            -signal.SIGTERM: "stop" in done,  # before the command's first line of code
            -signal.SIGKILL: "kill" in done,
        }
        return (
            "" if explained.get(code) else f"exit code {code}, though only {sorted(done) or 'nothing'} was done to it"
        )

    def _errors(self) -> Path:
        return self._out.with_name(f"{self._out.name}.errors.jsonl")

    def _audit(self, ids: list[str]) -> None:
        """Every rollout of every line is in the output exactly once, and no line failed."""
        self.finished += 1
        got = Counter((record["id"], record["choice_index"]) for record in records(self._out))
        self.rollouts += sum(got.values())
        wrong: list[str] = []
        for place in ((id, choice) for id in ids for choice in range(N)):
            if (times := got.pop(place, 0)) != 1:
                wrong.append(f"{place} {times} times")
        wrong += [f"{place}, which was not asked for" for place in got]
        if wrong:
            self.findings.append(f"run {self._out.name}: {len(wrong)} rollouts, such as {'; '.join(wrong[:_SHOWN])}")
        if self._errors().exists() and (left := [record["id"] for record in records(self._errors())]):
            self.findings.append(f"run {self._out.name}: exit code 0, and errors of {left}")


def pick(runners: list[Runner], event: Event) -> Runner:
    return random.Random(event.number).choice(runners)
