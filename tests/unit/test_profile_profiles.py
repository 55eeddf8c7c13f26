"""Provider profiles: the built-in ones, and those of a user's own file."""

from __future__ import annotations

from pathlib import Path

import pytest

from brimful.config import Settings
from brimful.errors import SettingError
from brimful.names import Mode
from brimful.profile import get_profile


def test_the_built_in_profiles_state_the_documented_limits() -> None:
    acs, kios, openai = (get_profile(name) for name in ("acs", "kios", "openai"))
    assert (acs.slots, acs.starts, acs.window_s, acs.max_request_tokens) == (16, 600, 60.0, 32_000)
    assert (acs.model, acs.workload_header, acs.modes[0]) == ("llama-8b", "X-Acs-Workload", Mode.COMPLETION)
    assert (kios.starts, kios.per_process, kios.modes, kios.max_prompts) == (None, 5000, (Mode.CHAT,), 1)
    assert (openai.model, openai.workload_header) == (None, None)


def test_a_users_profile_adds_and_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "profiles.toml"
    file.write_text(
        '[acs]\nslots = 4\n\n[mine]\nbase_url = "https://llm.example/v1"\nkey_env = ["MY_KEY"]\nmodel = "m"\n'
        'modes = ["chat"]\nslots = 8\ntokens = 90000\n'
    )
    monkeypatch.setenv("MY_KEY", "sk-mine")
    settings = Settings.load(provider="mine", profiles=file)
    assert settings.api_base == "https://llm.example/v1"
    assert settings.api_key.get_secret_value() == "sk-mine"
    assert (settings.profile.slots, settings.profile.starts, settings.profile.tokens) == (8, None, 90_000)
    assert (get_profile("acs", file).slots, get_profile("acs", file).starts) == (4, 600)


def test_a_users_headers_are_added_to_those_of_a_built_in_profile(tmp_path: Path) -> None:
    file = tmp_path / "profiles.toml"
    file.write_text('[portkey.headers]\nx-team = "red"\nx-portkey-config = "pc-1"\n')
    headers = get_profile("portkey", file).headers
    assert headers["x-portkey-provider"] == "${PORTKEY_PROVIDER}"
    assert (headers["x-team"], headers["x-portkey-config"]) == ("red", "pc-1")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[mine]\nslotz = 3\n", r"\[mine\] slotz: Extra inputs are not permitted"),
        ("[mine]\nslots = 0\n", r"\[mine\] slots: Input should be greater than or equal to 1"),
        ('[mine]\nmodes = ["poetry"]\n', r"\[mine\] modes\.0: "),
        ("[mine]\nmodes = []\n", r"\[mine\] modes: "),
        ("[mine]\nwindow_s = inf\n", r"\[mine\] window_s: Input should be a finite number"),
        ("[mine.extra_body]\ntop_p = nan\n", r"\[mine\] extra_body: Value error, top_p: NaN is not a JSON number"),
        ("[mine.extra_body]\na = {b = [-inf]}\n", r"\[mine\] extra_body: Value error, a: infinity"),
        ("[mine.extra_body]\nseed = 9223372036854775808\n", r"seed: must be a whole number of 64 bits"),
        ("[mine.prices.m]\ninput = inf\noutput = 1\n", r"\[mine\] prices\.m\.input: Input should be a finite"),
        ("mine = 3\n", "must be a table"),
        ("[mine\n", "is not TOML"),
    ],
)
def test_a_wrong_profile_names_file_table_and_field(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "profiles.toml"
    file.write_text(text)
    with pytest.raises(SettingError, match=told) as error:
        get_profile("mine", file)
    assert "profiles.toml" in str(error.value)
    assert "\n" not in str(error.value).removesuffix("\n") or "TOML" in told


def test_unknown_providers_and_files(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="known are acs, anthropic, azure, kios, local, openai"):
        get_profile("nobody")
    with pytest.raises(SettingError, match="BRIMFUL_PROFILES: cannot read"):
        get_profile("acs", tmp_path / "none.toml")
