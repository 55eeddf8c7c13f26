"""Admission alone, without Celery: any asyncio program, in any number of processes, within one key's limits.

    BRIMFUL_REDIS_URL=redis://… ACS_API_BASE=https://…/v1 ACS_API_KEY=… python examples/limits_only.py

Start it several times: together the processes stay within 16 active requests and 600 starts in any minute. The
connector marks when a request is sent, and shuts its connection if its slot is lost, even while other code blocks the
event loop. While the whole process is stopped (SIGSTOP), its requests go on, though its slots are given to others after
8 s; if it may be killed instead, pass `guardian=True` to Admission.
"""

import asyncio
import os

import aiohttp

from brimful_worker.admission import Admission, LeaseLost, Limits, StaleGrant
from brimful_worker.admission.aiohttp_connector import LeaseConnector

PROMPTS = [f"{name} is known for" for name in ("Samarkand", "Valparaíso", "Ljubljana", "Zanzibar", "Tbilisi", "Gdańsk")]


async def complete(session: aiohttp.ClientSession, admission: Admission, prompt: str) -> str:
    while True:
        try:
            # This block holds one slot and one start of the key, whatever other processes do.
            async with admission.slot("batch") as lease:
                body = {"model": "llama-8b", "prompt": prompt, "max_tokens": 16}
                async with session.post("completions", json=body) as answer:
                    lease.report(ok=answer.status < 500)
                    if answer.status == 429:  # the key is used elsewhere too: pause all processes
                        await admission.pause(float(answer.headers.get("Retry-After", 1)), "429")
                    elif answer.status < 500:
                        answer.raise_for_status()
                        return str((await answer.json())["choices"][0]["text"])
        except (StaleGrant, LeaseLost):
            continue  # sent too late, or Redis could not be reached: ask for another slot
        await asyncio.sleep(1)  # outside the block, which would hold a slot meanwhile


async def main() -> None:
    # Any name, the same for all processes with this key. The key itself is never sent to Redis.
    admission = Admission(os.environ["BRIMFUL_REDIS_URL"], "my-key", Limits(slots=16, starts=600, window_s=60.0))
    base = os.environ["ACS_API_BASE"].rstrip("/") + "/"
    headers = {"Authorization": f"Bearer {os.environ['ACS_API_KEY']}"}
    async with admission, aiohttp.ClientSession(base, headers=headers, connector=LeaseConnector()) as session:
        texts = await asyncio.gather(*(complete(session, admission, prompt) for prompt in PROMPTS))
    for prompt, text in zip(PROMPTS, texts, strict=True):
        print(prompt, "→", text)


if __name__ == "__main__":
    asyncio.run(main())
