"""One client process of a scenario: opens a limiter, prints "ready", waits for "go", works, prints its times as JSON.

    python client.py '{"limiter": …, "url": …, "slots": …, "coroutines": …, "rounds": …, "hold_s": …}'

Times are CLOCK_MONOTONIC seconds, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
import time
from typing import Any

from contenders import BY_NAME, Ask, Slot

_commands = 0


def _count_commands() -> None:
    """Count the commands that redis-py sends in this process: each one, in a pipeline too, is packed once."""
    import hiredis
    from redis.asyncio.connection import Connection

    _wrap(Connection, "pack_command")
    _wrap(hiredis, "pack_command")  # our own connections pack in C


def _wrap(owner: Any, name: str) -> None:
    original = getattr(owner, name)

    def counted(*args: Any) -> Any:
        global _commands
        _commands += 1
        return original(*args)

    setattr(owner, name, counted)


async def main(spec: dict[str, Any]) -> None:
    ask = Ask(
        spec["url"],
        spec.get("slots", 0),
        spec.get("starts", 0),
        spec.get("window_s", 1.0),
        spec.get("tag", "bench"),
        tuple(map(tuple, spec.get("windows", ()))),
    )
    async with BY_NAME[spec["limiter"]].open(ask) as slot:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        print(json.dumps(await _KINDS[spec["kind"]](slot, spec)), flush=True)


async def rounds(slot: Slot, spec: dict[str, Any]) -> dict[str, Any]:
    """Hold slots for ``hold_s``, ``rounds`` times per coroutine or for ``seconds``: [asked, in, out] of every hold."""
    events: list[tuple[float, float, float]] = []
    errors: list[str] = []
    end = time.monotonic() + spec["seconds"] if "seconds" in spec else float("inf")
    hold_s, spread = spec["hold_s"], spec.get("spread", 0.0)
    chance = random.Random(spec["coroutines"])
    before = _commands

    async def work() -> None:
        left = spec.get("rounds", sys.maxsize)
        while left > 0 and time.monotonic() < end:
            asked = time.monotonic()
            try:
                async with slot():
                    entered = time.monotonic()
                    await asyncio.sleep(hold_s * (1 + spread * chance.uniform(-1, 1)))
                    left_at = time.monotonic()
            except Exception as error:  # a peer may fail when Redis loses its memory
                errors.append(f"{type(error).__name__}: {error}"[:200])
                await asyncio.sleep(0.1)
                continue
            events.append((asked, entered, left_at))
            left -= 1

    workers = [asyncio.create_task(work()) for _ in range(spec["coroutines"])]
    await asyncio.wait(workers, timeout=spec["bound_s"])
    unfinished, commands = sum(not worker.done() for worker in workers), _commands - before
    for worker in workers:
        worker.cancel()
    await asyncio.wait(workers, timeout=2)
    outcome = {"errors": len(errors), "first_error": errors[0] if errors else "", "unfinished": unfinished}
    return {"events": events, "commands": commands, **outcome}


async def fill(slot: Slot, spec: dict[str, Any]) -> dict[str, Any]:
    """Take ``coroutines`` slots and keep them; returns when the last one was granted (None: not within the bound)."""
    full = asyncio.Event()
    held = 0

    async def take() -> None:
        nonlocal held
        async with slot():
            held += 1
            if held == spec["coroutines"]:
                full.set()
            await asyncio.sleep(spec["hold_s"])

    takers = [asyncio.create_task(take()) for _ in range(spec["coroutines"])]
    at: float | None = None
    try:
        async with asyncio.timeout(spec["bound_s"]):
            await full.wait()
            at = time.monotonic()
            print("full", flush=True)
            if spec.get("keep"):
                await asyncio.Event().wait()
    except TimeoutError:
        pass
    for taker in takers:
        taker.cancel()
    await asyncio.wait(takers, timeout=2)
    return {"full_at": at, "held": held}


_KINDS = {"rounds": rounds, "fill": fill}

if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    _count_commands()
    asyncio.run(main(json.loads(sys.argv[1])))
