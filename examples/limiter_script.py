"""A script within limits that all of its copies share: 4 blocks at a time, 10 starts a second and 300 a minute.

    BRIMFUL_REDIS_URL=redis://… python examples/limiter_script.py

Start it several times, on any machines with this Redis. A name that Redis sees for the first time waits 8 s.
"""

import asyncio
import contextlib
import os

from brimful_worker.limiter import Limiter, SlotTimeout, Window

WINDOWS = [Window(10, seconds=1), Window(300, seconds=60)]


async def measure(limiter: Limiter, station: str) -> str:
    async with limiter as lease:  # a slot and a start in both windows, whatever the other copies do
        await asyncio.sleep(0.05)  # here is your request
        return f"{station} after {lease.waited_s:.2f} s"


async def main() -> None:
    limiter = Limiter(os.environ["BRIMFUL_REDIS_URL"], "weather", slots=4, windows=WINDOWS)
    async with contextlib.aclosing(limiter):
        for line in await asyncio.gather(*(measure(limiter, f"station {number}") for number in range(12))):
            print(line)
        if (permit := await limiter.try_acquire("interactive")) is not None:  # without waiting behind others
            async with permit:
                print("one more at once")
        try:
            async with limiter.slot(timeout_s=30):
                print("one more within 30 s")
        except SlotTimeout as error:
            print(error)


if __name__ == "__main__":
    asyncio.run(main())
