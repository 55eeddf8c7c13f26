"""docs/runbook.md: a section for each alert, whose commands exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from brimful.cli.commands import app

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
PAGE = "docs/runbook.md"
TEXT = (ROOT / PAGE).read_text("utf-8")
RULES = [
    rule
    for group in yaml.safe_load((ROOT / "ops" / "prometheus" / "alerts.yml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
    if "alert" in rule
]
SECTIONS = dict(re.findall(r"(?ms)^## (\w+)\n(.*?)(?=^## |\Z)", TEXT))
OTHER_PROGRAMS = {"redis-cli", "curl", "journalctl", "systemctl", "top"}


def commands(section: str) -> list[str]:
    [block] = re.findall(r"(?ms)^```sh\n(.*?)^```$", section)
    return [line.partition("  #")[0].strip() for line in block.splitlines()]


def check(line: str) -> None:
    """Fails unless each word of a ``brimful`` command line is a command, an option of it, or an option's value."""
    command: Any = get_command(app)
    words = shlex.split(line.partition(">")[0].partition("|")[0])[1:]
    while words and hasattr(command, "get_command"):
        inner = command.get_command(None, words[0])
        assert inner is not None, line
        command = inner
        words.pop(0)
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("-")} <= known, line


def test_each_alert_has_a_section_and_each_section_its_alert() -> None:
    assert list(SECTIONS) == [rule["alert"] for rule in RULES]
    for rule in RULES:
        assert rule["annotations"]["runbook"] == f"{PAGE}#{rule['alert'].lower()}"


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_has_a_meaning_three_commands_and_what_to_do(name: str) -> None:
    meaning, _, todo = SECTIONS[name].partition("```sh\n")
    assert len(meaning.split()) > 10
    assert "\n- " in todo
    found = commands(SECTIONS[name])
    assert len(found) == 3
    for line in found:
        program = line.split()[0]
        assert program == "brimful" or program in OTHER_PROGRAMS, line


def test_every_command_of_brimful_that_is_named_exists() -> None:
    shown = [line for section in SECTIONS.values() for line in commands(section) if line.startswith("brimful ")]
    named = re.findall(r"`(brimful [^`]+)`", TEXT.replace("\n", " "))
    assert shown
    for line in [*shown, *named]:
        check(line)


def test_a_command_that_does_not_exist_is_noticed() -> None:
    for line in ("brimful purge", "brimful status --wotch", "brimful runs delete"):
        with pytest.raises(AssertionError):
            check(line)


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        path, _, anchor = target.partition("#")
        if path:
            assert (ROOT / "docs" / path).exists(), target
        else:
            assert anchor in {name.lower() for name in SECTIONS}, target
