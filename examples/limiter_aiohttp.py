"""aiohttp: the connector marks when a request is sent, and shuts its connection if its slot is lost.

BRIMFUL_REDIS_URL=redis://… API_URL=https://… python examples/limiter_aiohttp.py
"""

import asyncio
import contextlib
import os

import aiohttp

from brimful_worker.limiter import Limiter, StaleGrant, Window
from brimful_worker.limiter.aiohttp_adapter import LeaseConnector

WINDOWS = [Window(10, seconds=1), Window(300, seconds=60)]


async def fetch(limiter: Limiter, session: aiohttp.ClientSession, number: int) -> str:
    while True:
        try:
            async with limiter, session.get(os.environ["API_URL"], params={"number": number}) as answer:
                return f"{number}: {answer.status}"
        except StaleGrant:
            continue  # it would have been sent too late: nothing was sent


async def main() -> None:
    limiter = Limiter(os.environ["BRIMFUL_REDIS_URL"], "aiohttp", slots=4, windows=WINDOWS)
    async with contextlib.aclosing(limiter), aiohttp.ClientSession(connector=LeaseConnector()) as session:
        for line in await asyncio.gather(*(fetch(limiter, session, number) for number in range(8))):
            print(line)


if __name__ == "__main__":
    asyncio.run(main())
