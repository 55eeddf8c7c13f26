"""httpx: the transport marks when a request is sent, and its connection is shut if its slot is lost.

BRIMFUL_REDIS_URL=redis://… API_URL=https://… python examples/limiter_httpx.py
"""

import asyncio
import contextlib
import os

import httpx

from brimful_worker.limiter import Limiter
from brimful_worker.limiter.httpx_adapter import mark_wire

limiter = Limiter(os.environ["BRIMFUL_REDIS_URL"], "httpx", slots=4, starts=300, window_s=60)


@limiter.limited()  # it is called again if its grant came too late and nothing was sent
async def fetch(client: httpx.AsyncClient, number: int) -> str:
    answer = await client.get(os.environ["API_URL"], params={"number": number})
    return f"{number}: {answer.status_code}"


async def main() -> None:
    transport = mark_wire(httpx.AsyncHTTPTransport())
    async with contextlib.aclosing(limiter), httpx.AsyncClient(transport=transport) as client:
        for line in await asyncio.gather(*(fetch(client, number) for number in range(8))):
            print(line)


if __name__ == "__main__":
    asyncio.run(main())
