"""``--schema``: a JSON Schema's file, or a pydantic model by name. Validates texts as JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from brimful.errors import UsageError
from brimful.run.checks.json_text import NotJson, find_json
from brimful.run.checks.load import describe, is_object_name, load_object
from brimful.run.checks.verdict import one_line
from brimful.runtime.json_bytes import encode
from brimful.words.values import shown

FLAG = "--schema"
_MORE = 3
"""Faults of a value that a reason names."""


class Invalid(ValueError):
    """The text does not fit the schema. Its message is the reason."""


class Schema:
    """A schema, ready to validate. Safe to use in several threads at once."""

    def __init__(self, name: str, described: Any, validate: Callable[[str, Any], Any]) -> None:
        """``described``: the JSON Schema; by its digest a resumed run sees whether it is the same. None: unknown."""
        self._name = name
        self._described = described
        self._validate = validate

    @property
    def identity(self) -> str:
        """Its name, and the digest of what it says."""
        if self._described is None:
            return self._name
        digest = hashlib.sha256(encode(self._described, sort=True)).hexdigest()[:12]
        return f"{self._name} sha256:{digest}"

    def check(self, text: str) -> Any:
        """The value in the text. Raises Invalid."""
        try:
            found, value = find_json(text)
        except NotJson as error:
            raise Invalid(one_line(str(error))) from None
        return self._validate(found, value)


def load_schema(text: str) -> Schema:
    """From a file's name, ``module:Model`` or ``file.py:Model``. Raises UsageError."""
    if is_object_name(text) and not Path(text).is_file():
        return _pydantic(text)
    path = Path(text)
    try:
        schema = json.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not UTF-8"
        raise UsageError(
            f"{FLAG} {text}: cannot be read ({reason}); name a JSON Schema's file or module:Model"
        ) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{FLAG} {text}: is no JSON: {error}") from None
    return _json_schema(text, schema)


def _pydantic(text: str) -> Schema:
    model = load_object(FLAG, text)
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(model)
    except Exception as error:
        raise UsageError(f"{FLAG} {text}: is not a pydantic model or a type that pydantic knows: {error}") from None
    try:
        described: Any = adapter.json_schema()
    except Exception:  # a type without a JSON Schema
        described = None

    def validate(found: str, value: Any) -> Any:
        try:
            return adapter.validate_json(found)
        except ValidationError as error:
            faults = [f"{_path(each['loc'])}: {each['msg']}" for each in error.errors(include_url=False)]
            raise Invalid(_joined(faults)) from None

    return Schema(text, described, validate)


def _json_schema(text: str, schema: Any) -> Schema:
    try:
        import jsonschema
        from jsonschema.exceptions import SchemaError, best_match
        from referencing import Registry
    except ImportError:
        raise UsageError(
            f"{FLAG} {text}: a JSON Schema needs the package jsonschema: pip install 'brimful[schema]'; a pydantic "
            "model (module:Model) needs nothing more"
        ) from None
    if not isinstance(schema, dict | bool):
        raise UsageError(f"{FLAG} {text}: holds {shown(schema)}, and a JSON Schema is an object")
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        place = _path(error.absolute_path)
        raise UsageError(f"{FLAG} {text}: is no valid JSON Schema: {place}: {one_line(error.message)}") from None
    _check_references(text, schema)
    # With an empty registry nothing is ever fetched from the network.
    validator = kind(schema, registry=Registry())

    def validate(found: str, value: Any) -> Any:
        try:
            faults = list(validator.iter_errors(value))
        except RecursionError:
            raise Invalid("nested too deeply to be validated") from None
        if faults:
            best = best_match(faults)
            rest = [fault for fault in faults if fault is not best]
            raise Invalid(_joined([f"{_path(each.absolute_path)}: {each.message}" for each in (best, *rest)]))
        return value

    return Schema(Path(text).name, schema, validate)


def _check_references(text: str, schema: Any) -> None:
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    root = DRAFT202012.create_resource(schema) if isinstance(schema, dict) else None
    if root is None or any(isinstance(part.get("$id"), str) for part in _objects(schema) if part is not schema):
        return  # parts with an address of their own: found when they are used
    base = str(schema.get("$id") or "")
    resolver = Registry().with_resource(base, root).crawl().resolver(base)
    for part in _objects(schema):
        reference = part.get("$ref")
        if isinstance(reference, str):
            try:
                resolver.lookup(reference)
            except Unresolvable:
                raise UsageError(
                    f"{FLAG} {text}: $ref {reference!r} leads nowhere in this file, and other documents are not "
                    "fetched: put what it means under $defs"
                ) from None
            except Exception as error:
                raise UsageError(f"{FLAG} {text}: $ref {reference!r}: {describe(error)}") from None


def _objects(schema: Any) -> Iterator[dict[str, Any]]:
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


def _path(steps: Any) -> str:
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)


def _joined(faults: list[str]) -> str:
    more = len(faults) - _MORE
    return one_line("; ".join(faults[:_MORE]) + (f"; and {more} more" if more > 0 else ""))
