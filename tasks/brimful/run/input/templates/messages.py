"""``--messages-template``: a list of messages in YAML or JSON, every string of which is a template."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from brimful.errors import UsageError

_MAX_FILE = 4 << 20  # bytes


def load_messages(path: Path) -> list[dict[str, Any]]:
    """The messages, each with a role. Raises UsageError naming what is wrong, and where."""
    label = f"--messages-template {path}"
    raw = load_structure(path, label)
    if isinstance(raw, dict) and list(raw) == ["messages"]:
        raw = raw["messages"]
    if not isinstance(raw, list) or not raw:
        raise UsageError(f"{label}: must be a list of messages, such as [{{role: user, content: '{{question}}'}}]")
    for place, message in enumerate(raw, 1):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise UsageError(f"{label}: message {place} must have a role and a content")
        content = message.get("content")
        if not isinstance(content, str | list) and not (content is None and len(message) > 1):
            raise UsageError(
                f"{label}: the content of message {place} must be a text (quote one that begins with a brace) or a "
                "list of parts"
            )
        for part in content if isinstance(content, list) else ():
            ours = isinstance(part, dict) and set(part) in ({"image"}, {"text"})
            if not isinstance(part, dict) or not (ours or "type" in part):
                raise UsageError(
                    f"{label}: a part of message {place} must be {{text: …}}, {{image: …}} or an object with a type"
                )
            if ours and not all(isinstance(text, str) for text in part.values()):
                raise UsageError(f"{label}: {', '.join(part)} of message {place} must be a text; quote it")
    return raw


def load_structure(path: Path, label: str) -> Any:
    """A YAML or JSON file. Raises UsageError."""
    text = read_text(path, label)

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        _check_twice([name for name, _ in pairs], label)
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=once)
    except RecursionError:
        raise UsageError(f"{label}: is nested too deeply") from None
    except ValueError as error:
        if path.suffix == ".json":
            raise UsageError(f"{label}: is not JSON: {error}") from None
    return _yaml(text, label)


def read_text(path: Path, label: str) -> str:
    """A text file of at most 4 MiB. Raises UsageError."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE + 1)
    except OSError as error:
        raise UsageError(f"{label}: cannot be read: {error.strerror or error}") from None
    if len(data) > _MAX_FILE:
        raise UsageError(f"{label}: has more than {_MAX_FILE >> 20} MiB; is it the right file?")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{label}: is not UTF-8 at byte {error.start + 1}; save it as UTF-8") from None


def _yaml(text: str, label: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise UsageError(
            f"{label}: needs PyYAML: pip install 'brimful[templates]', or write it as JSON (a name that ends in .json)"
        ) from None
    try:
        # Aliases could make a small file enormous, and JSON has none.
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise UsageError(f"{label}: has an alias (*name); write the value out")
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            for mapping in _mappings(node):
                _check_twice([key.value for key, _ in mapping.value if isinstance(key.value, str)], label)
            return None if node is None else _plain(loader.construct_document(node), label)
        finally:
            loader.dispose()
    except RecursionError:
        raise UsageError(f"{label}: is nested too deeply") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or "not YAML"
        raise UsageError(f"{label}: {where}{problem}; quote texts that hold {{ }}, : or #") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:  # a date that is none, for instance
        raise UsageError(f"{label}: a value cannot be read ({error}); quote it") from None


def _mappings(node: Any) -> Iterator[Any]:
    """Every mapping node at and below ``node``."""
    for each in node.value if node is not None and isinstance(node.value, list) else ():
        for inner in each if isinstance(each, tuple) else (each,):
            yield from _mappings(inner)
    if node is not None and node.id == "mapping":
        yield node


def _check_twice(names: list[str], label: str) -> None:
    """Raises UsageError for a name that stands twice, of which parsers keep the last."""
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise UsageError(f"{label}: {twice[0]!r} stands twice in one object; name it once")


def _plain(value: Any, label: str) -> Any:
    """Raises UsageError for what JSON has no form for: a date, a set, a key that is no text."""
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                hint = "; quote it. Is it an unquoted {name}?" if isinstance(name, tuple) else "; quote it"
                raise UsageError(f"{label}: the name {name!r} is no text{hint}")
        return {name: _plain(item, label) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, label) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise UsageError(f"{label}: {str(value)[:60]!r} is a {type(value).__name__}; quote it")
