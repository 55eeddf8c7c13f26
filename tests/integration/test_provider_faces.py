"""What a person types first for each provider, and what is sent: against a stand-in that demands what it demands."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.commands import brimful, records
from support.provider_faces import Face, running

KEY = "sk-canary-22aa91"


def _sample(tmp_path: Path, *more: str, profile: str = "", **env: str) -> str:
    """Three lines with one worker; returns what was printed."""
    source, out = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text("one\ntwo\nthree\n")
    if profile:
        (tmp_path / "profiles.toml").write_text(profile)
        env["BRIMFUL_PROFILES"] = str(tmp_path / "profiles.toml")
    done = brimful("run", source, "-o", out, "--max-tokens", "8", "--workers", "1", *more, **env)
    assert done.returncode == 0, done.stderr
    assert {record["text"] for record in records(out)} == {"yes"}
    assert KEY not in done.stderr + out.read_text()
    return done.stderr


@pytest.mark.parametrize(("model", "name"), [("gpt-4o", "max_tokens"), ("gpt-5-mini", "max_completion_tokens")])
def test_only_openai_api_key(tmp_path: Path, model: str, name: str) -> None:
    other = {"max_tokens", "max_completion_tokens"} - {name}
    face = Face("/v1/chat/completions", {"Authorization": f"Bearer {KEY}"}, forbidden_fields=tuple(other))
    with running(face):
        profile = f'[openai]\nbase_url = "{face.root}/v1"\n'
        said = _sample(tmp_path, "--model", model, profile=profile, OPENAI_API_KEY=KEY)
    assert "provider openai (OPENAI_API_KEY is set)" in said
    assert [body[name] for body in face.asked] == [8] * 3
    assert face.refused == []


def test_only_kios_api_key(tmp_path: Path) -> None:
    with running(Face("/v1/chat/completions", {"Authorization": f"Bearer {KEY}"})) as face:
        said = _sample(tmp_path, profile=f'[kios]\nbase_url = "{face.root}/v1"\n', KIOS_API_KEY=KEY)
    assert "provider kios (KIOS_API_KEY is set)" in said
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
def test_an_azure_url(tmp_path: Path, url: str, path: str) -> None:
    with running(Face(path, {"api-key": KEY}, forbidden_headers=("Authorization",))) as face:
        env = {"AZURE_OPENAI_ENDPOINT": face.root + url, "AZURE_OPENAI_API_KEY": KEY}
        said = _sample(tmp_path, "--model", "mine", **env)
    assert "provider azure (AZURE_OPENAI_ENDPOINT is set)" in said
    assert len(face.asked) == 3


def test_a_portkey_url(tmp_path: Path) -> None:
    headers = {"x-portkey-api-key": KEY, "x-portkey-provider": "@openai-prod"}
    with running(
        Face("/v1/chat/completions", headers, forbidden_headers=("Authorization", "x-portkey-config"))
    ) as face:
        env = {"PORTKEY_API_KEY": KEY, "PORTKEY_BASE_URL": f"{face.root}/v1", "PORTKEY_PROVIDER": "@openai-prod"}
        said = _sample(tmp_path, "--model", "gpt-4o", **env)
    assert "provider portkey" in said
    assert len(face.asked) == 3


def test_a_local_server_without_a_key(tmp_path: Path) -> None:
    with running(Face("/v1/completions")) as face:
        said = _sample(tmp_path, "--provider", "local", "--model", "m", LOCAL_API_BASE=f"{face.root}/v1")
    assert face.root in said
    assert face.asked


def test_openai_base_url_of_an_unknown_host_stays_acs_and_says_what_else_fits(tmp_path: Path) -> None:
    with running(Face("/v1/completions", {"Authorization": f"Bearer {KEY}"})) as face:
        said = _sample(tmp_path, OPENAI_BASE_URL=f"{face.root}/v1", OPENAI_API_KEY=KEY)
    assert "provider acs (the default; --provider local" in said


@pytest.mark.parametrize("provider", ["openrouter", "anthropic"])
def test_a_provider_that_takes_no_n(tmp_path: Path, provider: str) -> None:
    with running(Face("/v1/chat/completions", {"Authorization": f"Bearer {KEY}"})) as face:
        env = {f"{provider.upper()}_API_KEY": KEY, f"{provider.upper()}_BASE_URL": f"{face.root}/v1"}
        said = _sample(tmp_path, "--model", "m", "--n", "2", **env)
    assert f"provider {provider}" in said
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
        _sample(tmp_path, "--param", "top_p=0.9", profile=profile, **env)
    assert {(body["safety"], body["top_p"]) for body in face.asked} == {("off", 0.9)}
