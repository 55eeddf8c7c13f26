"""Loads a user's object by its name: ``module:name`` or ``path/to/file.py:name``."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from brimful.errors import UsageError


def is_object_name(text: str) -> bool:
    """Whether it has the form ``module:name`` or ``file.py:name``; a plain file's name does not."""
    module, colon, name = text.rpartition(":")
    return bool(colon and module) and all(part.isidentifier() for part in name.split("."))


def load_object(flag: str, text: str) -> Any:
    """The object that ``text`` names. Modules are looked for in the current folder first, as by ``python -m``.

    Raises UsageError, with the place of the fault where the module cannot be imported. ``flag`` begins its message.
    """
    if not is_object_name(text):
        raise UsageError(f"{flag} {text}: must be module:name, or file.py:name")
    where, _, names = text.rpartition(":")
    with contextlib.redirect_stdout(sys.stderr):  # standard output is for data
        found: Any = _load_file(flag, text, Path(where)) if where.endswith(".py") else _load_module(flag, text, where)
    for name in names.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise UsageError(f"{flag} {text}: {where} has no {name!r}{_names(found)}") from None
    return found


def _load_file(flag: str, text: str, path: Path) -> Any:
    if not path.is_file():
        raise UsageError(f"{flag} {text}: there is no file {path}")
    _search(path.resolve().parent)
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up there
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise _import_fault(flag, text, error) from None
    return module


def _load_module(flag: str, text: str, name: str) -> Any:
    _search(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(
                f"{flag} {text}: there is no module {error.name!r} in the current folder or among the installed ones"
            ) from None
        raise _import_fault(flag, text, error) from None
    except BaseException as error:
        raise _import_fault(flag, text, error) from None


def _search(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _import_fault(flag: str, text: str, error: BaseException) -> BaseException:
    if isinstance(error, KeyboardInterrupt):
        return error
    return UsageError(f"{flag} {text}: cannot be imported: {describe(error)}")


def describe(error: BaseException, file: str | None = None) -> str:
    """``ZeroDivisionError: division by zero (scorer.py:12, in score)``, on one line.

    ``file``: the place is the last one of the traceback in this file, if there is any in it.
    """
    message = " ".join(str(error).split())
    said = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return f"{said} ({place})" if (place := place_of(error, file)) else said


def place_of(error: BaseException, file: str | None = None) -> str:
    """``scorer.py:12, in score``; empty where there is no traceback."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{os.path.basename(error.filename)}:{error.lineno}"
    frames = list(traceback.extract_tb(error.__traceback__))
    ours = [frame for frame in frames if file is not None and frame.filename == file]
    frames = [frame for frame in ours or frames if not frame.filename.startswith("<frozen")]
    if not frames:
        return ""
    last = frames[-1]
    return f"{os.path.basename(last.filename)}:{last.lineno}, in {last.name}"


def _names(found: Any) -> str:
    names = [name for name in vars(found) if not name.startswith("_")] if hasattr(found, "__dict__") else []
    own = [name for name in names if getattr(getattr(found, name, None), "__module__", None) == found.__name__]
    return f"; it has {', '.join(own[:8])}" if own else ""
