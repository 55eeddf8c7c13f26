"""What a person sets first for each provider, and what is sent: against a stand-in that demands what it demands.

Three are typed whole. The others are sampled in this process, with the settings that a worker's process makes of the
environment that the command hands to it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest

from brimful.config import Settings
from brimful.profile import load_profiles
from brimful.request import Request
from brimful_worker.admission import Admission
from brimful_worker.gateway import GatewayOptions
from brimful_worker.in_process import mock_provider
from brimful_worker.local.processes.environment import worker_environment
from brimful_worker.provider import Provider
from brimful_worker.sampling.sampler import Sampler
from support.commands import brimful, records
from support.fake_admission import FakeAdmission
from support.provider_faces import Face, running

KEY = "sk-canary-22aa91"


def _typed(tmp_path: Path, *more: str, profile: str, **env: str) -> str:
    """Three lines with one worker; returns what was printed."""
    source, out, profiles = tmp_path / "in.txt", tmp_path / "out.jsonl", tmp_path / "profiles.toml"
    source.write_text("one\ntwo\nthree\n")
    profiles.write_text(profile)
    env["BRIMFUL_PROFILES"] = str(profiles)
    done = brimful("run", source, "-o", out, "--max-tokens", "8", "--workers", "1", *more, **env)
    assert done.returncode == 0, done.stderr
    assert {record["text"] for record in records(out)} == {"yes"}
    assert KEY not in done.stderr + out.read_text()
    return done.stderr


async def _sample(monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], **env: str) -> Settings:
    """Three requests with these fields; returns the command's settings."""
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    settings = Settings.load()
    handed = worker_environment(settings)
    with monkeypatch.context() as patch:
        for name in os.environ.keys() - handed.keys():
            patch.delenv(name)
        for name, value in handed.items():
            patch.setenv(name, value)
        worker = Settings.load()
    async with Provider(worker) as provider:
        sampler = Sampler(worker, cast(Admission, FakeAdmission(worker.profile.slots)), provider)
        for prompt in ("one", "two", "three"):
            request = Request.parse({"prompt": prompt, "max_tokens": 8, **fields}, worker.profile)
            outcome = await sampler.sample(request)
            assert outcome.completion is not None, outcome.failure
            assert [choice["index"] for choice in outcome.completion["choices"]] == [0]
    return settings


def _profiles(folder: Path, text: str) -> str:
    (folder / "profiles.toml").write_text(text)
    return str(folder / "profiles.toml")


_OPENAI = [("gpt-4o", "max_tokens"), ("gpt-5-mini", "max_completion_tokens")]


def _openai(name: str) -> Face:
    other = {"max_tokens", "max_completion_tokens"} - {name}
    return Face("/v1/chat/completions", {"Authorization": f"Bearer {KEY}"}, forbidden_fields=tuple(other))


@pytest.mark.parametrize(("model", "name"), _OPENAI)
async def test_only_openai_api_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: str, name: str) -> None:
    with running(_openai(name)) as face:
        file = _profiles(tmp_path, f'[openai]\nbase_url = "{face.root}/v1"\n')
        settings = await _sample(monkeypatch, {"model": model}, BRIMFUL_PROFILES=file, OPENAI_API_KEY=KEY)
    assert settings.provider_choice[:2] == ("openai", "OPENAI_API_KEY is set")
    assert [body[name] for body in face.asked] == [8] * 3
    assert face.refused == []


def test_only_openai_api_key_typed(tmp_path: Path) -> None:
    model, name = _OPENAI[1]
    with running(_openai(name)) as face:
        profile = f'[openai]\nbase_url = "{face.root}/v1"\n'
        said = _typed(tmp_path, "--model", model, profile=profile, OPENAI_API_KEY=KEY)
    assert "provider openai (OPENAI_API_KEY is set)" in said
    assert [body[name] for body in face.asked] == [8] * 3
    assert face.refused == []


async def test_only_kios_api_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with running(Face("/v1/chat/completions", {"Authorization": f"Bearer {KEY}"})) as face:
        file = _profiles(tmp_path, f'[kios]\nbase_url = "{face.root}/v1"\n')
        settings = await _sample(monkeypatch, {}, BRIMFUL_PROFILES=file, KIOS_API_KEY=KEY)
    assert settings.provider_choice[:2] == ("kios", "KIOS_API_KEY is set")
    assert {body["model"] for body in face.asked} == {"gpt-5.5"}


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("", "/openai/v1/chat/completions"),
        (
            "/openai/deployments/mine/chat/completions?api-version=2024-10-21",
            "/openai/deployments/mine/chat/completions?api-version=2024-10-21",
        ),
    ],
)
async def test_an_azure_url(monkeypatch: pytest.MonkeyPatch, url: str, path: str) -> None:
    with running(Face(path, {"api-key": KEY}, forbidden_headers=("Authorization",))) as face:
        env = {"AZURE_OPENAI_ENDPOINT": face.root + url, "AZURE_OPENAI_API_KEY": KEY}
        settings = await _sample(monkeypatch, {"model": "mine"}, **env)
    assert settings.provider_choice[:2] == ("azure", "AZURE_OPENAI_ENDPOINT is set")
    assert len(face.asked) == 3


async def test_a_portkey_url(monkeypatch: pytest.MonkeyPatch) -> None:
    headers = {"x-portkey-api-key": KEY, "x-portkey-provider": "@openai-prod"}
    with running(
        Face("/v1/chat/completions", headers, forbidden_headers=("Authorization", "x-portkey-config"))
    ) as face:
        env = {"PORTKEY_API_KEY": KEY, "PORTKEY_BASE_URL": f"{face.root}/v1", "PORTKEY_PROVIDER": "@openai-prod"}
        settings = await _sample(monkeypatch, {"model": "gpt-4o"}, **env)
    assert settings.profile.name == "portkey"
    assert len(face.asked) == 3


async def test_a_local_server_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(Face("/v1/completions")) as face:
        env = {"BRIMFUL_PROVIDER": "local", "LOCAL_API_BASE": f"{face.root}/v1"}
        settings = await _sample(monkeypatch, {"model": "m"}, **env)
    assert settings.api_base == f"{face.root}/v1"
    assert len(face.asked) == 3


async def test_openai_base_url_of_an_unknown_host_stays_acs_and_says_what_else_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with running(Face("/v1/completions", {"Authorization": f"Bearer {KEY}"})) as face:
        settings = await _sample(monkeypatch, {}, OPENAI_BASE_URL=f"{face.root}/v1", OPENAI_API_KEY=KEY)
    assert settings.provider_choice.name == "acs"
    assert settings.provider_choice.why.startswith("the default; --provider local")
    assert len(face.asked) == 3


@pytest.mark.parametrize("provider", ["openrouter", "anthropic"])
async def test_a_provider_of_chats(monkeypatch: pytest.MonkeyPatch, provider: str) -> None:
    with running(Face("/v1/chat/completions", {"Authorization": f"Bearer {KEY}"})) as face:
        env = {f"{provider.upper()}_API_KEY": KEY, f"{provider.upper()}_BASE_URL": f"{face.root}/v1"}
        settings = await _sample(monkeypatch, {"model": "m"}, **env)
    assert settings.profile.name == provider
    assert settings.profile.max_n == 1
    assert len(face.asked) == 3


def test_a_provider_that_takes_no_n_typed(tmp_path: Path) -> None:
    with running(Face("/v1/chat/completions", {"Authorization": f"Bearer {KEY}"})) as face:
        env = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": f"{face.root}/v1"}
        said = _typed(tmp_path, "--model", "m", "--n", "2", profile="", **env)
    assert "provider anthropic" in said
    assert [body.get("n", 1) for body in face.asked] == [1] * 6


def test_headers_and_fields_of_a_profile_of_one_s_own(tmp_path: Path) -> None:
    profile = """
[mine]
base_env = ["MINE_URL"]
key_env = ["MINE_KEY"]
modes = ["chat"]
model = "m"
extra_body = { safety = "off", top_p = 0.5 }
[mine.headers]
x-team = "${MINE_TEAM}"
x-absent = "${MINE_ABSENT}"
x-plain = "yes"
"""
    headers = {"x-team": "red", "x-plain": "yes", "Authorization": f"Bearer {KEY}"}
    with running(Face("/v1/chat/completions", headers, forbidden_headers=("x-absent",))) as face:
        env = {"MINE_URL": face.root, "MINE_KEY": KEY, "MINE_TEAM": "red"}
        _typed(tmp_path, "--param", "top_p=0.9", profile=profile, **env)
    assert {(body["safety"], body["top_p"]) for body in face.asked} == {("off", 0.9)}


@pytest.mark.parametrize("provider", load_profiles())
async def test_the_mock_gateway_takes_the_key_where_the_provider_does(provider: str) -> None:
    settings = Settings.load(provider=provider)
    async with mock_provider(settings, {"key_headers": GatewayOptions().key_headers}) as (_, sample):
        fields = {"prompt": "one", "max_tokens": 8, "model": "m"}
        outcome = await sample(Request.parse(fields, settings.profile))
        assert outcome.completion is not None, outcome.failure


def test_a_rehearsal_with_a_key_header_of_one_s_own(tmp_path: Path) -> None:
    profile = """
[mine]
base_env = ["MINE_URL"]
key_env = ["MINE_KEY"]
key_header = "x-mine-key"
key_prefix = "Token "
modes = ["chat"]
model = "m"
slots = 2
"""
    source, out, profiles = tmp_path / "in.txt", tmp_path / "out.jsonl", tmp_path / "profiles.toml"
    source.write_text("one\n")
    profiles.write_text(profile)
    arguments = ("-o", out, "--max-tokens", "8", "--workers", "1", "--provider", "mine", "--rehearse")
    done = brimful("run", source, *arguments, BRIMFUL_PROFILES=str(profiles))
    assert done.returncode == 0, done.stderr
    assert len(records(out)) == 1
