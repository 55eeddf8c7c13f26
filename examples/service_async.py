"""An asyncio service (a web back end, a trainer's loop) with the light ``pip install brimful``.

BRIMFUL_REDIS_URL=redis://… python examples/service_async.py
"""

import asyncio
from collections.abc import AsyncIterator

from brimful import AsyncFleet, BrimfulError


async def one(fleet: AsyncFleet) -> None:
    """A single request is interactive: it is served before batch. Cancelling the await revokes it."""
    try:
        completion = await fleet.sample("The fog comes", max_tokens=12, timeout=120)
        print("one:", completion["choices"][0]["text"])
    except BrimfulError as error:
        print("no completion:", error)


async def prompts() -> AsyncIterator[str]:
    """It is read as requests can be sent, so it may be endless: a queue, a database cursor, a trainer."""
    for subject in ("the kingfisher", "tungsten", "the barometer", "Samarkand"):
        yield f"In one line, {subject} is"


async def many(fleet: AsyncFleet) -> None:
    """``map`` keeps the order, ``as_completed`` does not; a failed request yields a result with a failure."""
    async for done in fleet.as_completed(prompts(), max_tokens=12, n=2):
        print(f"{done.index}:", done.texts if done.failure is None else done.failure.message)


async def main() -> None:
    async with AsyncFleet() as fleet:
        await asyncio.gather(one(fleet), many(fleet))


if __name__ == "__main__":
    asyncio.run(main())
