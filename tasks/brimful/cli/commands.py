"""The ``brimful`` command. Each subcommand is a function in a file of its own, loaded when it is wanted."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from brimful import __version__

COMMANDS = {
    "run": "sample a file",
    "validate": "dry run",
    "report": "page of a run",
    "status": "what the fleet is doing",
    "up": "a whole fleet here",
    "worker": "one worker process",
    "limits": "the limits in force",
    "gateway": "the mock gateway",
    "doctor": "what is wrong, and what to do",
}
"""Subcommand → its module ``brimful.cli.<name>``, which has a function, or a Typer app, of the same name."""


class _LazyGroup(TyperGroup):
    """Imports a command's module when it is asked for: ``brimful run`` pays for no other."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Without importing them all."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"brimful.cli.{cmd_name}")
        found = getattr(module, cmd_name)
        if isinstance(found, typer.Typer):
            command = get_command(found)
        else:
            alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
            alone.command()(found)
            command = get_command(alone)
        command.name = cmd_name
        return command


app = typer.Typer(
    cls=_LazyGroup,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Samples LLM completions through a fleet that keeps one API key's limits full, and never over.",
)


def _version(asked: bool) -> None:
    if asked:
        print(f"brimful {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which brimful this is.")
    ] = False,
) -> None:
    """Samples LLM completions through a fleet that keeps one API key's limits full to the brim, and never over."""
    if context.invoked_subcommand != "doctor":  # it says so itself
        _warn_of_slips()


def _warn_of_slips() -> None:
    from brimful.config import Settings

    for found, remedy in Settings.slips():
        _say(f"{found}; {remedy}")


def run_command(arguments: list[str]) -> int:
    """Returns the exit code (DESIGN: 0, 1, 2, 3, 4, 5, 130)."""
    from brimful.errors import BrimfulError, ExitCode

    try:
        result = get_command(app)(arguments, prog_name="brimful", standalone_mode=False)
        sys.stdout.flush()  # here, where it is known what to do about it, and not at the interpreter's end
        return result if isinstance(result, int) else ExitCode.OK
    except BrimfulError as error:
        _say(str(error))
        return int(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _say("interrupted")
        return int(ExitCode.INTERRUPTED)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(ExitCode.INTERNAL)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.INTERNAL)
    except Exception as error:
        if (usage := getattr(error, "format_message", None)) is not None:  # typer's own: a bad option, say
            if (show := getattr(error, "show", None)) is not None:
                show()
            else:
                _say(usage())
            return int(ExitCode.USAGE)
        return _unexpected(error)


def _unexpected(error: Exception) -> int:
    """The message alone: a traceback's values could hold prompts."""
    if os.environ.get("BRIMFUL_DEBUG"):
        import traceback

        traceback.print_exception(error)
    _say(f"internal error: {type(error).__name__}: {error} (BRIMFUL_DEBUG=1 shows where)")
    return 1


def _say(text: str) -> None:
    print(f"brimful: {text}", file=sys.stderr, flush=True)
