"""Which provider is meant where none is named."""

from __future__ import annotations

import pytest

from brimful.config import Settings
from brimful.errors import SettingError
from brimful.profile import load_profiles


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("bare"))  # no .env
    for profile in load_profiles().values():
        for name in (*profile.base_env, *profile.key_env):
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(f"{name}_FILE", raising=False)


@pytest.mark.parametrize(
    ("env", "provider", "why"),
    [
        ({}, "acs", ""),
        ({"ACS_API_KEY": "k"}, "acs", "ACS_API_KEY is set"),
        ({"ACS_API_BASE": "http://h", "KIOS_API_KEY": "k"}, "acs", "ACS_API_BASE is set"),
        ({"KIOS_API_KEY": "k", "OPENAI_API_KEY": "k"}, "kios", "KIOS_API_KEY is set"),
        ({"OPENAI_API_KEY": "k"}, "openai", "OPENAI_API_KEY is set"),
        ({"OPENAI_API_KEY_FILE": "/key"}, "openai", "OPENAI_API_KEY is set"),
        ({"ANTHROPIC_API_KEY_FILE": "/key"}, "anthropic", "ANTHROPIC_API_KEY is set"),
        ({"OPENAI_BASE_URL": "https://api.openai.com/v1"}, "openai", "OPENAI_BASE_URL names api.openai.com"),
        ({"OPENAI_BASE_URL": "https://x.openai.azure.com/"}, "azure", "OPENAI_BASE_URL names x.openai.azure.com"),
        ({"OPENAI_BASE_URL": "https://api.portkey.ai/v1"}, "portkey", "OPENAI_BASE_URL names api.portkey.ai"),
        ({"OPENAI_BASE_URL": "http://gateway:8080/v1", "OPENAI_API_KEY": "k"}, "acs", "the default; --provider local"),
        ({"BRIMFUL_PROVIDER": "local", "KIOS_API_KEY": "k"}, "local", ""),
    ],
)
def test_the_provider_by_its_variables(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], provider: str, why: str
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    found = Settings.load().provider_choice
    assert found.name == provider == Settings.load().profile.name
    assert found.why.startswith(why)


def test_openai_api_key_alone_may_be_for_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    settings = Settings.load()
    assert settings.profile.name == "openai"
    assert settings.without_guess().profile.name == "acs"
    monkeypatch.setenv("KIOS_API_KEY", "k")
    assert Settings.load().without_guess().profile.name == "kios"


def test_what_is_missing_is_told_with_the_other_ways() -> None:
    with pytest.raises(SettingError, match=r"ACS_API_BASE.*--rehearse needs none.*--provider openai"):
        _ = Settings.load().api_base
    with pytest.raises(SettingError, match=r"AZURE_OPENAI_ENDPOINT.*this is the provider azure"):
        _ = Settings.load(provider="azure").api_base
    assert Settings.load(provider="local").api_key.get_secret_value() == "none"
