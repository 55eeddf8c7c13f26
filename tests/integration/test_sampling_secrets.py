"""The key and the prompts appear nowhere, whatever fails and at every log level."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from brimful_worker.gateway import Gateway, GatewayOptions
from support.sampling import KEY, bench

PROMPT = "a prompt that is nobody's business but mine"


async def test_neither_key_nor_prompt_is_logged_or_in_an_outcome(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    asyncio.get_running_loop().set_debug(True)
    told = []
    async with Gateway(GatewayOptions(latency_s=0.0, per_token_s=0.0)) as gateway:
        faults = "500:x1,reset:x1,trunc:x1,502html:x1,429bare:x1,badutf8:x1,cutjson:x1,hang:x1"
        async with bench(monkeypatch, gateway.url, timeout_s=0.2) as it:
            caplog.clear()
            told += [repr(it.settings), repr(it.provider), repr(vars(it.provider)), repr(it.sampler)]
            for mode in ("completion", "job", "chat"):
                for set_to in (faults, "401", "400", "filter", "redirect"):
                    gateway.set(faults=set_to)
                    told.append(repr((await it.sample(PROMPT, mode=mode, id="1")).failure))
            monkeypatch.setattr(it.provider, "body", lambda part: (_ for _ in ()).throw(ValueError(f"{KEY} {PROMPT}")))
            told.append(repr(await it.sample(PROMPT)))
    gc.collect()
    ours = [record for record in caplog.records if "gateway" not in record.name]
    assert any(record.name == "brimful_worker.sampling.sampler" for record in ours)
    text = "\n".join([*told, *map(logging.Formatter().format, ours), *capfd.readouterr()])
    assert KEY not in text
    assert PROMPT not in text
