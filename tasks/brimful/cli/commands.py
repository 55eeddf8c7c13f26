"""The ``brimful`` command group. Each command is a function in a module of its own, imported when it is used."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from brimful import __version__
from brimful.cli.style import say

COMMANDS = {
    "run": "Sample a file of prompts.",
    "validate": "Show what sampling a file takes (a dry run).",
    "report": "Make an HTML page of a run.",
    "status": "Show what the fleet is doing.",
    "up": "Run a whole fleet on this machine.",
    "worker": "Run one worker process.",
    "limits": "Show or change the limits in force.",
    "runs": "See, hold, resume, cancel and delete runs.",
    "serve": "Serve OpenAI's API within the key's limits.",
    "gateway": "Run the mock gateway.",
    "doctor": "Find what is wrong, and what to do about it.",
}
"""Command → what it does. Its module ``brimful.cli.<command>`` has a function, or a Typer app, of the same name."""


_LISTS = ("model", "temperature", "seed", "max_tokens")
"""Parameters of options that take several values, separated by commas (:mod:`brimful.run.input.sweep.grid`)."""


_TYPES = {"int": "INTEGER", "float": "FLOAT", "str": "TEXT", "path": "FILE"}
"""Typer's name of a type → what help shows in its place, as Click always did."""


class _OnceEach:
    """A command or group that refuses an option with one value that is given twice, of which Click keeps the last.

    A flag may be repeated, and so may an option that collects its values. Its help has no names of Python's types.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # of the class beside it
        for parameter in found:
            _name_type(parameter, ctx)
        return found

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from brimful.errors import UsageError

        this: Any = self
        _, _, order = this.make_parser(ctx).parse_args(args=list(args))
        for parameter, count in Counter(order).items():
            if count > 1 and parameter.param_type_name == "option" and _takes_one(parameter):
                name = max(parameter.opts, key=len)
                ways = f"; to sample with each value, write {name} A,B" if parameter.name in _LISTS else ""
                raise UsageError(f"{name}: is given {count} times, and takes effect once; give it once{ways}")
        found: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]  # of the class beside it
        return found


class _Command(_OnceEach, TyperCommand):
    pass


class _Group(_OnceEach, TyperGroup):
    pass


def _check_once(app: typer.Typer) -> None:
    """Make all commands of an app, and the app's own options, :class:`_OnceEach`."""
    for command in _commands(app):
        command.cls = command.cls if command.cls not in (None, TyperCommand) else _Command
    if app.registered_callback is not None:
        app.registered_callback.cls = _Group


def _commands(app: typer.Typer) -> Iterable[Any]:
    yield from app.registered_commands
    for group in app.registered_groups:
        if group.typer_instance is not None:
            yield from _commands(group.typer_instance)


def _name_type(parameter: Any, ctx: Any) -> None:
    """Show a parameter's type as TEXT or a|b where Typer would show ``<list[str]>`` or ``<a|b>``."""
    if parameter.param_type_name == "argument":
        parameter.display_type_rich = lambda ctx: None  # its name says what it is
    elif parameter.metavar is None and not parameter.is_flag and hasattr(parameter, "display_type"):
        shown = parameter.display_type(ctx).strip("<>").removeprefix("list[").removesuffix("]").removesuffix(" range")
        parameter.metavar = _TYPES.get(shown, shown)


def _takes_one(parameter: Any) -> bool:
    return not (parameter.multiple or parameter.is_flag or parameter.count or parameter.nargs == -1)


class _LazyGroup(TyperGroup):
    """Imports a command's module when it is used: ``brimful run`` does not wait for the other commands' imports."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        found = getattr(importlib.import_module(f"brimful.cli.{cmd_name}"), cmd_name)
        if not isinstance(found, typer.Typer):
            function, found = found, typer.Typer(add_completion=False, **_STYLE)
            found.command()(function)
        _check_once(found)
        command = get_command(found)
        command.name = cmd_name
        return command


_STYLE: dict[str, Any] = {"pretty_exceptions_enable": False, "rich_markup_mode": None}
app = typer.Typer(
    cls=_LazyGroup,
    no_args_is_help=True,
    help="Sample LLM completions with a fleet that fills one API key's limits and never exceeds them.",
    **_STYLE,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"brimful {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand != "doctor":  # reports them as checks
        from brimful.config import Settings

        for found, remedy in Settings.unknown_variables():
            say(f"{found}; {remedy}")


def run_command(arguments: list[str]) -> int:
    """Returns the exit code. What a user can cause is a line on stderr, never a traceback."""
    from brimful.errors import BrimfulError, ExitCode

    try:
        result = get_command(app)(arguments, prog_name="brimful", standalone_mode=False)
        sys.stdout.flush()  # here, where a closed pipe can be handled
        return result if isinstance(result, int) else ExitCode.OK
    except BrimfulError as error:
        say(str(error))
        return int(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        say("interrupted")
        return int(ExitCode.INTERRUPTED)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(ExitCode.INTERNAL)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.INTERNAL)
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None and (fault := _writing_fault(error)) is not None:
            say(fault)
            return int(ExitCode.INTERNAL)
        if hasattr(error, "show") and hasattr(error, "format_message"):  # click's: a bad option
            wrong: Any = error
            wrong.message = str(wrong.message).replace("Value error, ", "")  # pydantic's, where a choice is unknown
            wrong.show()
            return int(ExitCode.USAGE)
        if os.environ.get("BRIMFUL_DEBUG"):
            import traceback

            traceback.print_exception(error)
        # The message alone: the values in a traceback could hold prompts.
        say(f"internal error: {type(error).__name__}: {error} (set BRIMFUL_DEBUG=1 for a traceback)")
        return int(ExitCode.INTERNAL)


def _writing_fault(error: OSError) -> str | None:
    """A message for an error of standard output, or of a full disk; None for any other. What standard output still
    holds is dropped."""
    try:
        sys.stdout.flush()
    except OSError as held:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return f"cannot write standard output: {held.strerror or held}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):  # unbuffered output holds nothing
        return f"cannot write: {error.strerror}; make room, and type the command again"
    return None
