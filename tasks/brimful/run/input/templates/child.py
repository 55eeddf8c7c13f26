"""A process that renders Jinja2 templates, bounded in time and memory: a template that loops ends it, not the run.

Reads JSON lines and answers each with one. The first is ``{"templates": [TEXT…], "cpu_s": SECONDS}``, answered ``{}``;
each further one is a row, answered ``{"texts": [TEXT…]}``. An error is ``{"template": PLACE, "error": TEXT}`` or,
where a column is not there, ``{"template": PLACE, "missing": NAME}``.
"""

from __future__ import annotations

import contextlib
import json
import re
import resource
import signal
import sys
from collections.abc import Mapping
from typing import IO, Any

from brimful.run.input.templates.values import MAX_TEXT, text_of
from brimful.words.phrases import cut

_START_S = 20.0  # of processor time, to import Jinja2 and compile
MEMORY = 512 << 20
"""Bytes of address space."""
_MESSAGE = 300  # characters of an error
_UNDEFINED = re.compile(r"^'(.*)' is undefined$", re.DOTALL)


def main(requests: IO[bytes], answers: IO[bytes]) -> None:
    with contextlib.suppress(ValueError, OSError):  # not on every system
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    templates: list[Any] | None = None
    cpu_s = _START_S
    for line in requests:
        signal.setitimer(signal.ITIMER_PROF, cpu_s)  # SIGPROF ends the process, whatever it does
        if templates is None:
            first = json.loads(line)
            templates, answer = _compiled(first["templates"])
            cpu_s = first["cpu_s"]
        else:
            try:
                answer = _rendered(templates, json.loads(line))
            except MemoryError as error:
                answer = {"template": 0, "error": _words(error)}
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def _environment() -> Any:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    found = ImmutableSandboxedEnvironment(undefined=StrictUndefined, finalize=_shown, keep_trailing_newline=True)
    found.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    del found.filters["random"], found.globals["lipsum"]  # a line gives the same request each time it is read
    return found


def _shown(value: Any) -> str:
    from jinja2 import Undefined

    if isinstance(value, Undefined):
        return str(value)  # raises
    if value is None:
        raise ValueError("an expression is null; give it another value, such as {{ name or '' }}")
    try:
        return text_of(value)
    except TypeError:
        return str(value)


def _compiled(texts: list[str]) -> tuple[list[Any], dict[str, Any]]:
    environment, templates = _environment(), []
    for place, text in enumerate(texts):
        try:
            templates.append(environment.from_string(text))
        except Exception as error:
            line = getattr(error, "lineno", None)
            return [], {"template": place, "error": (f"line {line}: " if line else "") + _words(error)}
    return templates, {}


def _rendered(templates: list[Any], row: Mapping[str, Any]) -> dict[str, Any]:
    texts: list[str] = []
    for place, template in enumerate(templates):
        try:
            text = template.render({"row": row, **row})
        except Exception as error:
            if (found := _UNDEFINED.match(str(error))) and type(error).__name__ == "UndefinedError":
                return {"template": place, "missing": found[1]}
            return {"template": place, "error": _words(error)}
        if sum(map(len, texts)) + len(text) > MAX_TEXT:
            return {"template": place, "error": f"renders more than {MAX_TEXT >> 20} million characters for this line"}
        texts.append(text)
    return {"texts": texts}


def _words(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return f"needs more than {MEMORY >> 20:,} MiB of memory for this line"
    if isinstance(error, RecursionError):
        return "calls itself too deeply"
    return cut(str(error) or type(error).__name__, _MESSAGE)


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
