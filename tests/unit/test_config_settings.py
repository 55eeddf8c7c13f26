"""Settings: their descriptions, and errors for those that are wrong, unknown or missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from brimful.config import Settings
from brimful.credentials import first_set
from brimful.errors import SettingError
from brimful.words.setting_faults import FORMER_NAMES
from support.docs import descriptions


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("SLOTS", "many", "BRIMFUL_SLOTS: 'many' is not a whole number"),
        ("SLOTS", "1.5", "BRIMFUL_SLOTS: '1.5' is not a whole number"),
        ("SLOTS", "0", "BRIMFUL_SLOTS: must be at least 1"),
        ("WINDOW_S", "soon", "BRIMFUL_WINDOW_S: 'soon' is not a number"),
        ("TIMEOUT_S", "0", "BRIMFUL_TIMEOUT_S: must be more than 0"),
        *[
            (name, "inf", f"BRIMFUL_{name}: must be less than 1e+12")
            for name in (
                "TIMEOUT_S",
                "CONNECT_TIMEOUT_S",
                "MAX_ANSWER_MB",
                "WINDOW_S",
                "GUARD_S",
                "STARVATION_S",
                "JOB_POLL_S",
                "COOLDOWN_S",
                "BACKOFF_BASE_S",
            )
        ],
        ("CONCURRENCY", "100000000000", "BRIMFUL_CONCURRENCY: must be at most 100000"),
        ("LEASE_S", "61", "BRIMFUL_LEASE_S: must be at most 60"),
        ("GUARDIAN", "perhaps", "BRIMFUL_GUARDIAN: 'perhaps' is neither true nor false"),
    ],
)
def test_a_wrong_value_is_named_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(f"BRIMFUL_{name}", value)
    with pytest.raises(SettingError) as error:
        Settings.load()
    assert str(error.value) == said


def test_a_value_that_may_be_secret_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIMFUL_REDIS_URL", "http://:hush@host")
    with pytest.raises(SettingError, match="BRIMFUL_REDIS_URL: must begin with") as error:
        Settings.load(flower_password=["hush"])
    assert "BRIMFUL_FLOWER_PASSWORD" in str(error.value)
    assert "hush" not in str(error.value)


@pytest.mark.parametrize("call", [Settings.load, Settings.unknown_variables, lambda: first_set(("OPENAI_API_KEY",))])
def test_a_dotenv_file_that_is_no_text_is_named(call: Callable[[], object]) -> None:
    Path(".env").write_bytes("NAME=Zoë\n".encode("latin-1"))
    with pytest.raises(SettingError, match=rf"cannot read \.env in {Path.cwd()}: it is not UTF-8, at byte 7"):
        call()


def test_unknown_variables_with_the_nearest_known_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BRIMFUL_SLOT", "BRIMFUL_SLOTS", "BRIMFUL_DEBUG", "BRIMFUL_BATCH", "BRIMFUL_XYZZY"):
        monkeypatch.setenv(name, "1")
    Path(".env").write_text("BRIMFUL_REDIS_ULR=redis://host\nOTHER=1\n")
    assert Settings.unknown_variables() == [
        ("BRIMFUL_REDIS_ULR is set, but there is no such setting", "did you mean BRIMFUL_REDIS_URL?"),
        ("BRIMFUL_SLOT is set, but there is no such setting", "did you mean BRIMFUL_SLOTS?"),
        ("BRIMFUL_XYZZY is set, but there is no such setting", "unset it"),
    ]


@pytest.mark.parametrize(("former", "name"), FORMER_NAMES.items())
def test_a_variable_with_a_former_name_is_still_read(monkeypatch: pytest.MonkeyPatch, former: str, name: str) -> None:
    monkeypatch.setenv(f"BRIMFUL_{former.upper()}", "1")
    assert getattr(Settings.load(), name) == 1
    assert Settings.unknown_variables() == []
    assert getattr(Settings.load(**{name: 0.5 if name.endswith("_s") else 2}), name) != 1, "a flag beats it"
    Path(".env").write_text(f"BRIMFUL_{name.upper()}=0\n" if name != "starvation_s" else "BRIMFUL_STARVATION_S=7\n")
    assert getattr(Settings.load(), name) != 1, "the present name beats it"


def test_a_wrong_value_under_a_former_name_names_the_present_one(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".env").write_text("BRIMFUL_BREAKER=many\n")
    with pytest.raises(SettingError, match=r"^BRIMFUL_CIRCUIT_BREAKER: 'many' is not a whole number$"):
        Settings.load()


@pytest.mark.parametrize("name", ["api_base", "api_key"])
def test_a_missing_key_or_url_names_its_variable(name: str) -> None:
    with pytest.raises(SettingError, match=r"set ACS_API_.*need none with --rehearse"):
        getattr(Settings.load(), name)


def test_a_redis_url_with_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(SettingError, match=r"^BRIMFUL_REDIS_URL: must begin with redis://.* or sentinel://$"):
        Settings.load(redis_url="http://x")


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_has_a_description(name: str) -> None:
    assert descriptions(Settings).get(name, "").endswith(".")


def test_settings_beat_the_profile_and_zero_is_no_limit() -> None:
    profile = Settings.load(slots=3, starts=0, model="m").profile
    assert (profile.slots, profile.starts, profile.window_s, profile.model) == (3, None, 60.0, "m")


def test_slots_may_be_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIMFUL_SLOTS", " Auto")
    settings = Settings.load()
    assert (settings.slots, settings.slots_auto) == ("auto", True)
    assert settings.profile.slots == 16, "of workers that cannot learn them"
    assert not Settings.load(slots=8).slots_auto


@pytest.mark.parametrize(
    ("slots", "fault"),
    [("0", "BRIMFUL_SLOTS: must be at least 1"), ("many", "BRIMFUL_SLOTS: 'many' is not a whole number")],
)
def test_other_slots_are_refused(monkeypatch: pytest.MonkeyPatch, slots: str, fault: str) -> None:
    monkeypatch.setenv("BRIMFUL_SLOTS", slots)
    with pytest.raises(SettingError, match=f"^{fault}$"):
        Settings.load()
