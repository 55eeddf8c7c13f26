"""A decorated function: each call takes a slot, a start and its tokens, together with every other process.

BRIMFUL_REDIS_URL=redis://… python examples/limiter_decorator.py
"""

import asyncio
import contextlib
import os

from brimful_worker.limiter import Limiter

limiter = Limiter(os.environ["BRIMFUL_REDIS_URL"], "translator", slots=4, starts=100, tokens=20_000, window_s=60)


@limiter.limited(tokens=500, timeout_s=60)
async def translate(text: str) -> str:
    await asyncio.sleep(0.05)  # here is your request
    return text.upper()


async def main() -> None:
    async with contextlib.aclosing(limiter):
        print(*await asyncio.gather(*(translate(word) for word in ("alpha", "beta", "gamma"))), sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
