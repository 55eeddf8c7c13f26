"""The script that the Kios page ("Concurrency") recommends: one shared aiohttp session, a semaphore, one gather.

It has no retries, no key limits and no output file: the lower bound of what this work costs. Used by thousands.py.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path

import aiohttp


async def sample(prompts: list[str], url: str, key: str, concurrency: int, max_tokens: int) -> int:
    """Print one answer a line; returns how many requests failed."""
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=concurrency), timeout=aiohttp.ClientTimeout(total=120)
    )
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    free = asyncio.Semaphore(concurrency)

    async def one(prompt: str) -> str:
        body = {"model": "gpt-5.5", "messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens}
        async with free, session.post(url, headers=headers, json=body) as response:
            answer = await response.json()
            return str(answer["choices"][0]["message"]["content"])

    async with session:
        ended = await asyncio.gather(*map(one, prompts), return_exceptions=True)
    for answer in ended:
        print(f"failed: {answer!r}" if isinstance(answer, BaseException) else answer)
    return sum(isinstance(answer, BaseException) for answer in ended)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("prompts", type=Path, help="JSONL")
    parser.add_argument("--url", required=True)
    parser.add_argument("--share", required=True, help="i/k: the i-th of k processes")
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--max-tokens", type=int, required=True)
    options = parser.parse_args()
    place, of = map(int, options.share.split("/"))
    with options.prompts.open(encoding="utf-8") as lines:
        prompts = [json.loads(line)["prompt"] for number, line in enumerate(lines) if number % of == place]
    key = os.environ["KIOS_API_KEY"]
    failed = asyncio.run(sample(prompts, options.url, key, options.concurrency, options.max_tokens))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
