"""``--hook``: a user's function that sees each completion; and what it returned or raised as a verdict."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from pydantic_core import to_jsonable_python

from brimful.errors import UsageError
from brimful.hooks import Again, Completion, Line
from brimful.run.checks.load import describe, load_object, place_of
from brimful.run.checks.verdict import Accepted, Broken, Rejected, Verdict, one_line
from brimful.runtime.json_bytes import encode

FLAG = "--hook"


class Hook:
    """A user's hook.

    A plain function is called by :meth:`begin`, where it may block. It returns a verdict, or an awaitable for
    :meth:`end`. An async one is called by :meth:`call`.
    """

    def __init__(self, name: str, function: Any) -> None:
        self.name = name
        self._function = function
        plain = inspect.unwrap(function if inspect.isroutine(function) else type(function).__call__)
        self._file = getattr(getattr(plain, "__code__", None), "co_filename", None)
        self.is_async = inspect.iscoroutinefunction(plain)

    def begin(self, line: Line, completion: Completion) -> Any:
        try:
            answer = self._function(line, completion)
        except BaseException as error:
            return self._raised(error)
        return answer if inspect.isawaitable(answer) else self._returned(answer)

    async def call(self, line: Line, completion: Completion) -> Verdict:
        try:
            answer = self._function(line, completion)
        except BaseException as error:
            return self._raised(error)
        return await self.end(answer)

    async def end(self, answer: Any) -> Verdict:
        try:
            return self._returned(await answer)
        except GeneratorExit:
            raise
        except BaseException as error:  # a cancellation too: at its time limit nobody waits for the verdict any more
            return self._raised(error)

    def _raised(self, error: BaseException) -> Verdict:
        if isinstance(error, Again):
            return Rejected("hook", one_line(str(error)) or "no reason given")
        return Broken(one_line(describe(error, self._file)), f"{type(error).__name__} {place_of(error, self._file)}")

    def _returned(self, answer: Any) -> Verdict:
        if answer is None:
            return Accepted()
        if isinstance(answer, Again) or (isinstance(answer, type) and issubclass(answer, Again)):
            return _unfit("it returned Again: raise it")
        if not isinstance(answer, Mapping):
            return _unfit(f"it returned a {type(answer).__name__}: return a dict of columns, or None")
        columns: dict[str, Any] = {}
        for name, value in answer.items():
            if not isinstance(name, str):
                return _unfit(f"it returned the column {name!r}: names of columns are strings")
            try:
                columns[name] = to_jsonable_python(value, fallback=_plain)
                encode(columns[name])  # an integer of thousands of digits has no form either
            except Exception as error:
                return _unfit(f"it returned a column {name!r} that is no JSON: {error}")
        return Accepted(columns)


def _unfit(reason: str) -> Broken:
    return Broken(one_line(reason), reason)


def _plain(value: Any) -> Any:
    """Convert scalars and arrays of numpy, torch and the like."""
    if callable(tolist := getattr(value, "tolist", None)):
        return tolist()
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


def load_hook(text: str) -> Hook:
    """From ``module:function`` or ``file.py:function``. Raises UsageError."""
    found = load_object(FLAG, text)
    if isinstance(found, type) or not callable(found):
        raise UsageError(f"{FLAG} {text}: is not a function")
    try:
        inspect.signature(found).bind(None, None)
    except TypeError:
        raise UsageError(f"{FLAG} {text}: must take two arguments: a line and a completion (brimful.hooks)") from None
    except ValueError:
        pass  # a builtin that does not say what it takes
    return Hook(text, found)
