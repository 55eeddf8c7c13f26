"""The texts of a run for its page: for each prompt a *group* with its rollouts and failures, read from their files."""

from __future__ import annotations

from contextlib import ExitStack
from typing import IO, Any

from brimful.run.report.prompts import Prompts
from brimful.run.report.reading import Run, parse_record

_COPIED = ("finish_reason", "attempts", "tries", "hook", "sweep", "sweep_index", "provider_s", "waited_s", "packed")


class Groups:
    """Groups by number, JSON-ready. Use it as a context manager: it holds the files open."""

    def __init__(self, run: Run, prompts: Prompts) -> None:
        self._cells, self._sources, self._prompts = run.cells, run.sources, prompts
        self._stack = ExitStack()
        self._files: list[IO[bytes] | None] = []

    def __enter__(self) -> Groups:
        for path in self._sources:
            self._files.append(self._stack.enter_context(path.open("rb")) if path.exists() else None)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __len__(self) -> int:
        return len(self._cells.starts) - 1

    def get(self, number: int) -> dict[str, Any]:
        """``{"id", "line", "prompt_index", "prompt", "input", "cells": [{"choice", "text", …}]}``

        ``prompt`` is a string, token ids, a list of messages, or None. A failure has ``cause``, ``error`` and
        ``status`` in place of ``text``, and ``refused``, the text that a hook failed with.
        """
        rows = range(self._cells.starts[number], self._cells.starts[number + 1])
        records = [self._record(row) for row in rows]
        first, line, index = records[0], self._cells.line[rows[0]], self._cells.prompt[rows[0]]
        return {
            "id": _id(first),
            "line": int(first.get("line") or 0),
            "prompt_index": index,
            "prompt": self._prompt(records, line, index),
            "input": next((record["input"] for record in records if record.get("input")), None),
            "cells": [self._cell(row, record) for row, record in zip(rows, records, strict=True)],
        }

    def _record(self, row: int) -> dict[str, Any]:
        file = self._files[self._cells.source[row]]
        assert file is not None
        file.seek(self._cells.offset[row])
        return parse_record(file.readline(), file.name)

    def _prompt(self, records: list[dict[str, Any]], line: int, index: int) -> Any:
        """What the record says, else the input, else the request that failed."""
        for record in records:
            if found := record.get("prompt") or record.get("messages"):
                return found
        if (prompts := self._prompts.get(line)) is not None:
            return prompts[index] if index < len(prompts) else None
        asked = next((record["request"] for record in records if record.get("request")), None)
        if not isinstance(asked, dict):
            return asked
        if "messages" in asked:
            return asked["messages"]
        prompt = asked.get("prompt")
        if not isinstance(prompt, list) or (prompt and isinstance(prompt[0], int)):
            return prompt
        return prompt[index] if index < len(prompt) else None

    def _cell(self, row: int, record: dict[str, Any]) -> dict[str, Any]:
        cell = {name: record[name] for name in _COPIED if record.get(name) is not None}
        cell["choice"] = self._cells.choice[row]
        if self._cells.source[row] % 2:
            cell |= {"cause": record.get("cause"), "error": record.get("message"), "status": record.get("status")}
            return cell | ({"refused": record["text"]} if record.get("text") else {})  # by a check or hook
        model = record.get("asked_model") or record.get("model")
        cell |= {"text": record["text"], "model": model, "tokens": (record.get("usage") or {}).get("completion_tokens")}
        if message := {name: value for name, value in (record.get("message") or {}).items() if name != "role"}:
            cell["message"] = message
        return cell


def _id(record: dict[str, Any]) -> str:
    """The line's own id, without the combination of a sweep (``7#model=a``)."""
    id = str(record.get("id"))
    return id.rpartition("#")[0] or id if record.get("sweep") else id
