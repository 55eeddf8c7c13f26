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


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("https://openrouter.ai/api/v1", "https://openrouter.ai/api/v1"),
        ("https://x.openai.azure.com/openai/v1/", "https://x.openai.azure.com/openai/v1"),
        ("https://api.anthropic.com/v1", "https://api.anthropic.com/v1"),
    ],
)
def test_openai_s_variables_count_for_the_provider_that_the_url_names(
    monkeypatch: pytest.MonkeyPatch, url: str, base: str
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-theirs")
    settings = Settings.load()
    assert (settings.api_base, settings.api_key.get_secret_value()) == (base, "sk-theirs")


def test_a_key_is_not_sent_to_the_host_of_another_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "https://api.openai.com/v1")
    monkeypatch.setenv("KIOS_API_KEY", "k")
    assert Settings.load().api_base == "https://kiosapi.com/v1"
    assert Settings.load(provider="local").api_base == "http://127.0.0.1:8000/v1"
    with pytest.raises(SettingError, match="no provider URL: set ACS_API_BASE"):
        _ = Settings.load(provider="acs").api_base
    monkeypatch.setenv("OPENAI_BASE_URL", "http://gateway:8080/v1")
    assert Settings.load().api_base == "http://gateway:8080/v1"


def test_of_several_keys_the_message_names_another(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI", "OPENROUTER", "ANTHROPIC"):
        monkeypatch.setenv(f"{name}_API_KEY", "k")
    choice = Settings.load().provider_choice
    assert choice.why == "OPENROUTER_API_KEY is set; ANTHROPIC_API_KEY is set too, --provider anthropic uses it"


@pytest.mark.parametrize("url", ["http://[::1", "api.openai.com/v1", "http://h:0"])
def test_an_invalid_url_names_the_variable_that_holds_it(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    with pytest.raises(SettingError, match=r"^OPENAI_BASE_URL: "):
        _ = Settings.load().api_base


@pytest.mark.parametrize("url", ["ftp://u:sesame@h/v1", "http://u:sesame@h:0", "http://u:open/sesame@h", "u:sesame@h"])
def test_a_message_about_an_invalid_url_shows_no_password(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    with pytest.raises(SettingError, match=r"^OPENAI_BASE_URL: '…@h") as error:
        _ = Settings.load().api_base
    assert "sesame" not in str(error.value)


def test_the_url_that_is_shown_and_asked_has_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "HTTPS://u:open@sesame@h:81/v1/?version=a%40b")
    assert Settings.load().api_base == "https://h:81/v1/?version=a%40b"


@pytest.mark.parametrize("sign", ["/", "?", "#", "@x/", "@x?"])
def test_a_password_that_seems_to_end_before_its_end_is_not_shown(monkeypatch: pytest.MonkeyPatch, sign: str) -> None:
    """``12`` would be the port."""
    for login in (f"u:12{sign}sesame", f"sesame{sign}34"):
        monkeypatch.setenv("OPENAI_BASE_URL", f"https://{login}@h/v1")
        settings = Settings.load()
        with pytest.raises(SettingError, match=r"^OPENAI_BASE_URL: '…@h/v1' .*as %2F") as error:
            _ = settings.api_base
        assert "sesame" not in str(error.value) + str(settings.provider_choice) + repr(settings)


def test_a_variable_of_white_space_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACS_API_KEY", " ")
    monkeypatch.setenv("OPENAI_BASE_URL", " ")
    monkeypatch.setenv("OPENAI_API_KEY", "k\n")
    settings = Settings.load()
    assert settings.profile.name == "openai"
    assert (settings.api_base, settings.api_key.get_secret_value()) == ("https://api.openai.com/v1", "k")


def test_openai_api_key_alone_may_be_for_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    settings = Settings.load()
    assert settings.profile.name == "openai"
    assert settings.without_guess().profile.name == "acs"
    monkeypatch.setenv("KIOS_API_KEY", "k")
    assert Settings.load().without_guess().profile.name == "kios"


def test_what_is_missing_is_told_with_the_other_ways() -> None:
    with pytest.raises(SettingError, match=r"ACS_API_BASE.*`brimful run`.*--rehearse; .*BRIMFUL_PROVIDER=openai"):
        _ = Settings.load().api_base
    with pytest.raises(SettingError, match=r"AZURE_OPENAI_ENDPOINT.*this is the provider azure"):
        _ = Settings.load(provider="azure").api_base
    assert Settings.load(provider="local").api_key.get_secret_value() == "none"
