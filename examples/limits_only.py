"""The admission by itself: any asyncio program, in any number of processes, within one key's limits. No Celery.

    BRIMFUL_REDIS_URL=redis://… ACS_API_BASE=https://…/v1 ACS_API_KEY=… python examples/limits_only.py

Start it several times at once: together they stay within 16 requests at a time and 600 starts in any minute.
"""

import asyncio
import os

import aiohttp

from brimful_worker.admission import Admission, Limits

PROMPTS = [f"{name} is known for" for name in ("Samarkand", "Valparaíso", "Ljubljana", "Zanzibar", "Tbilisi", "Gdańsk")]


async def complete(session: aiohttp.ClientSession, admission: Admission, prompt: str) -> str:
    while True:
        # Inside this block one slot and one start of the key are ours, whatever other processes do.
        async with admission.slot("batch") as lease:
            body = {"model": "llama-8b", "prompt": prompt, "max_tokens": 16}
            async with session.post("completions", json=body) as answer:
                lease.report(ok=answer.status < 500)
                if answer.status == 429:  # somebody else uses the key too: everybody pauses, not only we
                    await admission.pause(float(answer.headers.get("Retry-After", 1)), "429")
                elif answer.status < 500:
                    answer.raise_for_status()
                    return str((await answer.json())["choices"][0]["text"])
        await asyncio.sleep(1)  # outside the block: a slot is not held while nothing is sent


async def main() -> None:
    # Any name that all processes with this key share; the key itself never goes to Redis.
    admission = Admission(os.environ["BRIMFUL_REDIS_URL"], "my-key", Limits(slots=16, starts=600, window_s=60.0))
    base = os.environ["ACS_API_BASE"].rstrip("/") + "/"
    headers = {"Authorization": f"Bearer {os.environ['ACS_API_KEY']}"}
    async with admission, aiohttp.ClientSession(base, headers=headers) as session:
        texts = await asyncio.gather(*(complete(session, admission, prompt) for prompt in PROMPTS))
    for prompt, text in zip(PROMPTS, texts, strict=True):
        print(prompt, "→", text)


if __name__ == "__main__":
    asyncio.run(main())
