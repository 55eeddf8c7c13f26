"""Help, options and shell completion of all commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.main import get_command

from brimful.cli import gateway as gateway_command
from brimful.cli.commands import COMMANDS, app, run_command
from brimful_worker.gateway import GatewayOptions

_FLAGS = ("--version", "--help", "--install-completion", "--show-completion")


def _commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    command = command or get_command(app)
    yield path, command
    if hasattr(command, "list_commands"):
        for name in command.list_commands(None):
            yield from _commands(command.get_command(None, name), (*path, name))


def _options() -> Iterator[Any]:
    for path, command in _commands():
        for parameter in command.params:
            if not getattr(parameter, "hidden", False) and not set(parameter.opts) & set(_FLAGS):
                yield pytest.param(parameter, id=" ".join([*path, parameter.opts[-1]]))


@pytest.mark.parametrize("option", [*_options()])
def test_the_help_of_an_option_is_a_sentence_with_its_default(option: Any) -> None:
    text = option.help
    assert text.isascii()
    assert text[0].isupper() or text.startswith(("JSONL", "OUT")), text
    assert text.endswith("."), text
    flag = getattr(option, "is_flag", False)
    stated = option.default is not None and option.show_default
    assert flag or option.required or stated or option.multiple or option.nargs == -1 or "Default:" in text, text


def test_every_command_says_in_sentences_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    for path, command in _commands():
        assert command.help.strip().endswith("."), path
        assert run_command([*path, "--help"]) == 0
        said = capsys.readouterr().out
        assert said.isascii(), path
        assert "<" not in said.replace("<=", ""), "a name of Python's types, as in <list[str]>"
    assert all(about[0].isupper() and about.endswith(".") for about in COMMANDS.values())


def test_the_gateway_s_choices_are_those_of_its_options() -> None:
    for name in ("retry_after", "disconnect", "usage", "reasoning", "text"):
        choices = get_args(getattr(gateway_command, name.title().replace("_", "")))
        assert choices == get_args(GatewayOptions.model_fields[name].annotation), name


_LIMITS = (
    "slots starts window guard tokens budget reserve-slots reserve-starts starvation lease circuit-breaker slow-start"
)
WRONG = [
    *(f"limits set --{name} -1" for name in _LIMITS.split()),
    *(f"limits set --{name} nan" for name in ("window", "guard", "starvation", "lease", "slow-start")),
    "limits set --slots 0",
    "limits set --lease 0",
    *(f"run in.txt -o out.jsonl {option}" for option in (
        "--n 0", "--max-tokens 0", "--temperature hot", "--seed x", "--seed 9223372036854775808",
        f"--seed {10**400}", "--temperature nan", "--temperature 1e999", "--param x", "--param top_p=NaN",
        "--param top_p=1e999", "--param top_k=1" + "0" * 5000, f"--param seed={2**63}", "--input-format x", "--limit 0",
        "--format x", "--order x", "--budget-tokens 0", "--budget nan", "--pack 0", "--workload x", "--weight 0",
        "--weight nan", "--workers 0", "--provider nobody",
    )),
    *(f"validate in.txt {option}" for option in ("--latency -1", "--latency nan", "--pack x", "--provider nobody")),
    *(f"gateway {option}" for option in (
        "--port 70000", "--window 0", "--jitter 2", "--retry-after x", "--disconnect x", "--usage x", "--text x",
        "--reasoning x",
    )),
    *(f"worker {option}" for option in ("--concurrency 0", "--log-level loud")),
    *(f"up {option}" for option in ("--workers 0", "--flower-port 70000", "--port 70000")),
]  # fmt: skip


@pytest.mark.parametrize("typed", WRONG)
def test_a_wrong_option_is_named_as_it_was_typed(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.txt").write_text("a\n")
    words = typed.split()
    assert run_command(words) == 2
    said = capsys.readouterr().err
    assert words[-2] in said, said
    assert "internal error" not in said
    assert "Value error" not in said
    assert [entry.name for entry in tmp_path.iterdir()] == ["in.txt"]


def test_the_former_name_of_a_limit_is_named_with_its_present_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["limits", "set", "--ramp", "-1"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "brimful: --ramp is now called --slow-start",
        "brimful: --slow-start -1: must be a number of at least 0, and below 1e+12",
    ]


def test_a_wrong_variable_is_named_as_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("BRIMFUL_LOG_LEVEL", "loud")
    monkeypatch.setenv("BRIMFUL_WEIGHT", "0")
    assert run_command(["worker", "--concurrency", "1"]) == 2
    assert "BRIMFUL_LOG_LEVEL: " in (said := capsys.readouterr().err)
    assert "BRIMFUL_WEIGHT: must be at least 0.01" in said
