"""An asyncio service (a web back end, a trainer's loop) with the light ``pip install brimful``.

    BRIMFUL_REDIS_URL=redis://… python examples/service_async.py

Celery's own calls block, so they go to threads; the event loop stays free.
"""

import asyncio
from typing import Any

from brimful import BrimfulError, sample


async def ask(prompt: str, **fields: Any) -> str:
    """One completion's text. Raises a brimful error that says what happened."""
    result = await asyncio.to_thread(sample.delay, prompt, **fields)
    completion = await asyncio.to_thread(result.get, timeout=120)
    return str(completion["choices"][0]["text"])


async def main() -> None:
    prompts = ["The fog comes", "Half a league, half a league,", "Shall I compare thee to a spreadsheet?"]
    for task in asyncio.as_completed([ask(prompt, max_tokens=12) for prompt in prompts]):  # in the order of their ends
        try:
            print(await task)
        except BrimfulError as error:
            print("no completion:", error)


if __name__ == "__main__":
    asyncio.run(main())
