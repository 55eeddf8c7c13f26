"""Renders Jinja2 templates in a child process of their own (:mod:`brimful.run.input.templates.child`)."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

from brimful.errors import InputError, UsageError
from brimful.run.input.templates.values import missing_column

_DEATHS = 3
"""Rows in a row that may end the process. All further ones are refused at once."""
_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE")
"""Variables that the process gets: not the API key."""


class Text(NamedTuple):
    text: str
    label: str


class JinjaTexts:
    """Several templates, rendered together for each row. The process starts with the first; :meth:`close` ends it."""

    def __init__(self, texts: Sequence[Text], cpu_s: float) -> None:
        """``cpu_s``: processor time that a row may take."""
        self._texts = texts
        self._cpu_s = cpu_s
        self._process: subprocess.Popen[bytes] | None = None
        self._deaths = 0

    def check(self) -> None:
        """Raises UsageError for a template that is not valid, or if Jinja2 is not installed."""
        if find_spec("jinja2") is None:
            raise UsageError(
                f"{self._texts[0].label} is a Jinja2 template, since it holds {{{{, {{% or {{#: "
                "pip install 'brimful[templates]' to render it"
            )
        self._start()

    def render(self, row: Mapping[str, Any]) -> list[str]:
        """Raises InputError where a template fails for this row."""
        if self._deaths >= _DEATHS:
            raise InputError(self._killed())
        if self._process is None:
            self._start()
        answer = self._ask(row)
        if answer is None:
            self._deaths += 1
            raise InputError(self._killed())
        self._deaths = 0
        if "texts" in answer:
            return [str(text) for text in answer["texts"]]
        label = self._texts[answer["template"]].label
        if "missing" in answer:
            raise missing_column(answer["missing"], label, row)
        raise InputError(f"{label}: {answer['error']}")

    def close(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            process.communicate()

    def _start(self) -> None:
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "brimful.run.input.templates.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        answer = self._ask({"templates": [each.text for each in self._texts], "cpu_s": self._cpu_s})
        if answer is None:
            raise UsageError(f"{self._texts[0].label}: the process that renders templates ended at once")
        if "error" in answer:
            self.close()
            raise UsageError(f"{self._texts[answer['template']].label}: is no Jinja2 template: {answer['error']}")

    def _ask(self, message: Mapping[str, Any]) -> dict[str, Any] | None:
        """None: the process has died, and a later row starts another."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        answer = b""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        if not answer.endswith(b"\n"):
            self.close()
            return None
        return dict(json.loads(answer))

    def _killed(self) -> str:
        labels = ", ".join(dict.fromkeys(each.label for each in self._texts))
        return f"{labels}: takes too much time or memory for this line; does it loop without end?"
