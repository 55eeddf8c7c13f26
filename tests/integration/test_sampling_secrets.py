"""The key and the prompts appear nowhere, whatever fails and at every log level."""

from __future__ import annotations

import asyncio
import gc
import logging
from urllib.parse import unquote

import pytest

from brimful.credentials import filled_headers
from brimful.errors import SettingError
from brimful_worker.gateway import Gateway, GatewayOptions
from support.provider_faces import Face, running
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


async def test_a_secret_of_a_header_is_not_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Portkey's headers hold the key of the provider behind it, and a refusal may quote it."""
    behind = "sk-behind-it-90ff12ab"
    with running(Face("/v1/chat/completions", {"Authorization": "another"})) as face:
        for name, value in (("API_KEY", KEY), ("BASE_URL", f"{face.root}/v1"), ("PROVIDER_KEY", f"{behind}\n")):
            monkeypatch.setenv(f"PORTKEY_{name}", value)
        async with bench(monkeypatch, face.root, provider="portkey", model="m") as it:
            failure = (await it.sample()).failure
            told = repr(failure) + repr(vars(it.provider))
    assert failure is not None
    assert "Bearer [PORTKEY_PROVIDER_KEY]" in failure.message
    assert behind not in told


async def test_a_secret_in_the_query_of_the_url_is_not_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "sk-in-the-query-7731"
    with running(Face("/elsewhere")) as face:
        async with bench(monkeypatch, f"{face.root}/v1?api-version=2024-10-21&code={secret}") as it:
            failure = (await it.sample()).failure
            body = it.provider.conceal(f'{{"path": "/v1?code={secret}"}}'.encode())
            told = repr(failure) + repr(it.settings) + repr(vars(it.provider))
    assert failure is not None
    assert failure.message.endswith("?api-version=2024-10-21&code=[code]")
    assert body == b'{"path": "/v1?code=[code]"}'
    assert secret not in told


@pytest.mark.parametrize("form", ["in-the+query/77%2F31==", "in-the%2Bquery%2F7731%3D%3D"])
async def test_a_secret_in_the_query_is_not_quoted_in_any_of_its_forms(
    monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """As it is set, as it goes over the wire, and decoded."""
    with running(Face("/elsewhere")) as face:
        async with bench(monkeypatch, f"{face.root}/v1?code={form}") as it:
            failure = (await it.sample()).failure
            bodies = [it.provider.conceal(f"code={quoted}".encode()) for quoted in (form, unquote(form))]
    assert failure is not None
    assert failure.message.endswith("/completions?code=[code]")
    assert bodies == [b"code=[code]"] * 2


async def test_a_key_that_is_a_word_does_not_change_the_provider_s_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.sampling.KEY", "none")
    with running(Face("/v1/chat/completions")) as face:
        async with bench(monkeypatch, face.root) as it:
            assert it.provider.conceal(b'{"tool_choice": "none"}') == b'{"tool_choice": "none"}'


def test_a_header_that_cannot_be_sent_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TEAM", "red\nx-evil: 1")
    with pytest.raises(SettingError, match=r"header x-team \(from SOME_TEAM\) contains characters") as error:
        filled_headers({"x-team": "${SOME_TEAM}"})
    assert "evil" not in str(error.value)
