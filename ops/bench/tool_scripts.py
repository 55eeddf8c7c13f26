"""Programs that sample one file with one key, as their own pages show them. Each is a process of tools.py.

``python tool_scripts.py NAME PROMPTS URL``; it prints how many prompts it has answers for.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

MODEL, MAX_TOKENS, SLOTS, STARTS_A_SECOND = "llama-8b", 8, 16, 10


def read(path: str) -> list[str]:
    return [json.loads(line)["prompt"] for line in Path(path).read_text("utf-8").splitlines()]


def script(prompts: list[str], url: str) -> int:
    """The recipe of the ACS page "Batch rollouts": one AsyncOpenAI client, its retries, Semaphore(16), one gather."""
    from openai import AsyncOpenAI

    async def main() -> int:
        client = AsyncOpenAI(base_url=url, api_key="any", default_headers={"X-Acs-Workload": "batch"})
        free = asyncio.Semaphore(SLOTS)

        async def one(prompt: str) -> Any:
            async with free:
                return await client.completions.create(model=MODEL, prompt=prompt, max_tokens=MAX_TOKENS)

        answers = await asyncio.gather(*map(one, prompts), return_exceptions=True)
        return sum(not isinstance(answer, BaseException) for answer in answers)

    return asyncio.run(main())


def aiometer(prompts: list[str], url: str) -> int:
    """aiometer's ``run_all`` with both limits, around the same client."""
    import functools

    import aiometer
    from openai import AsyncOpenAI

    async def main() -> int:
        client = AsyncOpenAI(base_url=url, api_key="any")

        async def one(prompt: str) -> bool:
            try:
                await client.completions.create(model=MODEL, prompt=prompt, max_tokens=MAX_TOKENS)
            except Exception:
                return False
            return True

        jobs = [functools.partial(one, prompt) for prompt in prompts]
        return sum(await aiometer.run_all(jobs, max_at_once=SLOTS, max_per_second=STARTS_A_SECOND))

    return asyncio.run(main())


def saturate(prompts: list[str], url: str) -> int:
    """saturate's ``pump`` with its window fixed at the slots; it has no limit on starts."""
    from saturate import Fixed, pump

    logging.disable()
    answered = []
    with tempfile.TemporaryDirectory() as folder:
        pump(
            ({"prompt": prompt} for prompt in prompts),
            to_request=lambda row: {"model": MODEL, "prompt": row["prompt"], "max_tokens": MAX_TOKENS},
            parse=lambda row, answer: answered.append(1) or {"text": answer["choices"][0]["text"]},
            endpoint=url, output=folder, window=Fixed(SLOTS), route="/completions", signal_source="none",
            headers={"Authorization": "Bearer any"},
        )  # fmt: skip
    return len(answered)


def curator(prompts: list[str], url: str) -> int:
    """curator's ``LLM`` online, with both limits; its default of tokens a minute would bind first."""
    os.environ |= {"TELEMETRY_ENABLED": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1"}
    # curator wants tables that tiktoken downloads. litellm, which it needs, brings them.
    found = importlib.util.find_spec("litellm")
    tables = Path(str(found and found.origin)).parent / "litellm_core_utils" / "tokenizers"
    os.environ["TIKTOKEN_CACHE_DIR"] = str(tables)
    from bespokelabs import curator

    limits = {
        "max_concurrent_requests": SLOTS,
        "max_requests_per_minute": STARTS_A_SECOND * 60,
        "max_tokens_per_minute": 10**9,
    }
    llm = curator.LLM(
        model_name=MODEL, backend="openai", backend_params={"base_url": url, "api_key": "any", **limits},
        generation_params={"max_tokens": 400},  # a text that ends at max_tokens is a failure to curator
    )  # fmt: skip
    return len(llm(prompts).dataset)


PROGRAMS = {"script": script, "aiometer": aiometer, "saturate": saturate, "curator": curator}

if __name__ == "__main__":
    name, file, address = sys.argv[1:]
    print(f"answered {PROGRAMS[name](read(file), address)}")
