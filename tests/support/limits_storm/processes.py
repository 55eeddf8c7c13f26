"""The processes of a storm over the limits: holders, each behind a proxy that is its only way to Redis."""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.holder import Holder
from support.limits_storm.audit import Limits
from support.proxy import Proxy
from support.storm.schedule import Event

WINDOW_S = 6.0
DEFAULTS = Limits(slots=4, starts=20)
LIMITS: dict[str, Any] = {
    "slots": DEFAULTS.slots,
    "starts": DEFAULTS.starts,
    "window_s": WINDOW_S,
    "guard_s": 0.6,
    "lease_s": 4.0,
    "cooldown_s": 0.4,
    "circuit_breaker": 0,
    "slow_start_s": 0.5,
}
MOST = 6
HOLDS_S = (0.03, 0.3, 1.5, 4.0)
"""How long the requests of a process take: for short ones the starts bind, for long ones the slots."""
SLOW_S = 0.2
"""A way takes this much longer at most, in each direction: a round trip stays below a quarter of a lease."""
_COMMANDS = (b'"ask"', b'"release"', b'"renew"', b'"join"')


class Process:
    """``anchor``: it is never killed, nor cut off for as long as a lease, so that somebody knows what Redis forgets."""

    def __init__(self, name: str, proxy: Proxy, holder: Holder, log: Path, *, anchor: bool) -> None:
        self.name, self.proxy, self.holder, self.anchor = name, proxy, holder, anchor
        self.log = log
        self.ready = False
        self.killed = False

    @property
    def live(self) -> bool:
        return not self.killed and self.holder.process.poll() is None

    def kill(self) -> None:
        self.killed = True
        self.holder.process.kill()


class Processes:
    """``findings``: what went wrong by itself."""

    def __init__(self, directory: Path, ledger_port: int, target: Callable[[], int]) -> None:
        """``target``: the port of the server in use."""
        self.all: list[Process] = []
        self.findings: list[str] = []
        self._directory = directory
        self._ledger_port = ledger_port
        self._target = target
        self._watching: set[asyncio.Task[None]] = set()

    def live(self) -> list[Process]:
        return [process for process in self.all if process.live]

    async def add(self, number: int) -> None:
        """A newcomer. Returns when it has been started, not when it has joined."""
        name = f"p{len(self.all)}"
        dice = random.Random(number)
        proxy = await Proxy(0).__aenter__()
        proxy.target = self._target()
        log = self._directory / f"{name}.log"
        with log.open("wb") as errors:
            holder = Holder(
                proxy.url,
                self._ledger_port,
                errors=errors,
                name=name,
                limits=LIMITS,
                coroutines=12,
                hold_s=dice.choice(HOLDS_S),
                spread=0.5,
                block_s=dice.choice((0, 0, 0, 0, 5)) if self.all else 0,
                start_s=60.0,
                stepped=True,
            )
        process = Process(name, proxy, holder, log, anchor=not self.all)
        self.all.append(process)
        task = asyncio.create_task(self._watch(process))
        self._watching.add(task)

    async def _watch(self, process: Process) -> None:
        try:
            await asyncio.to_thread(process.holder.ready)
            process.ready = True
        except AssertionError:  # it has ended
            await asyncio.to_thread(process.holder.process.wait)
        if not process.ready and not process.killed:
            self.findings.append(f"{process.name} could not join: {_end(process.log)}")

    def apply(self, event: Event) -> Callable[[], object] | None:
        """Do what happens to one process. Returns what ends it, for a fault that lasts."""
        others = [process for process in self.live() if not process.anchor and process.ready]
        if event.kind in ("cut", "slow way", "lose a reply", "lose a command"):
            others = [process for process in self.live() if process.ready]
        if not others:
            return None
        process = others[event.number % len(others)]
        proxy, dice = process.proxy, random.Random(event.number)
        match event.kind:
            case "kill" | "kill and replace":
                process.kill()
            case "stop" | "stop, then kill":
                process.holder.freeze()
                return process.holder.thaw if event.kind == "stop" else process.kill
            case "cut":
                proxy.cut(only_subscribed=dice.random() < 0.3)
            case "cut off":
                proxy.refuse = True
                proxy.cut()
                return lambda: setattr(proxy, "refuse", False)
            case "freeze the way":
                proxy.freeze()
                return proxy.thaw
            case "slow way":
                proxy.delay_s = lambda: dice.uniform(0, SLOW_S)
                return lambda: setattr(proxy, "delay_s", None)
            case "lose a reply":
                proxy.drop_reply_to = dice.choice(_COMMANDS)
            case "lose a command":
                proxy.drop_request = dice.choice(_COMMANDS)
        return None

    def retarget(self) -> None:
        """All ways lead to the server in use from now on. In one step: nobody reaches two of them."""
        for process in self.all:
            process.proxy.target = self._target()
            process.proxy.cut()

    def calm(self) -> None:
        for process in self.all:
            process.proxy.refuse, process.proxy.delay_s = False, None
            process.proxy.drop_reply_to = process.proxy.drop_request = None
            process.proxy.thaw()
            if process.live:
                process.holder.thaw()

    def look(self) -> None:
        """Notice processes that have ended by themselves."""
        for process in self.all:
            code = process.holder.process.poll()
            if code is not None and not process.killed and process.ready:
                self.findings.append(f"{process.name} ended by itself with exit code {code}: {_end(process.log)}")
                process.killed = True

    def tracebacks(self) -> list[str]:
        """What the processes logged that nobody expected."""
        logs = [(process.name, process.log.read_text("utf-8", "replace")) for process in self.all]
        return [f"{name} logged: …{text[-1500:]}" for name, text in logs if "Traceback" in text]

    async def end(self) -> None:
        for process in self.all:
            if process.holder.process.poll() is None:
                process.holder.thaw()
                process.kill()
        await asyncio.gather(*self._watching, return_exceptions=True)
        for process in self.all:
            with contextlib.suppress(subprocess.TimeoutExpired, BrokenPipeError):
                await asyncio.to_thread(process.holder.close)
            await process.proxy.__aexit__()


def _end(log: Path) -> str:
    return log.read_text("utf-8", "replace")[-1500:]
