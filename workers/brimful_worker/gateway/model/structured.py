"""JSON that fits a JSON Schema: the arguments of a tool call, and the answers of ``response_format``."""

from __future__ import annotations

import random
from typing import Any

_WORDS = ("river", "harbour", "question", "garden", "letter", "window", "engine", "market")
_DEPTH = 6
"""Below this depth optional properties and items are left out, which ends schemas that contain themselves."""


def sample_json(schema: Any, seed: bytes) -> Any:
    """A value that fits the schema, the same for the same seed. Knows the part that OpenAI's structured outputs take:

    types, enum, const, properties, items, anyOf, allOf, oneOf, $ref within the schema, and bounds of numbers, strings
    and arrays. Other keywords are ignored.
    """
    return _Sampler(schema, random.Random(seed)).value(schema, 0)


class _Sampler:
    def __init__(self, root: Any, rng: random.Random) -> None:
        self._root = root
        self._rng = rng

    def value(self, schema: Any, depth: int) -> Any:
        if not isinstance(schema, dict) or depth > 4 * _DEPTH:
            return None if depth > 4 * _DEPTH else "value"
        if isinstance(reference := schema.get("$ref"), str):
            return self.value(self._resolve(reference), depth + 1)
        if "const" in schema:
            return schema["const"]
        if isinstance(choices := schema.get("enum"), list) and choices:
            return self._rng.choice(choices)
        for name in ("anyOf", "oneOf"):
            if isinstance(options := schema.get(name), list) and options:
                # The last of several is often null or the end of a recursion.
                return self.value(options[-1] if depth > _DEPTH else options[0], depth + 1)
        if isinstance(parts := schema.get("allOf"), list):
            return self.value(self._merged(schema, parts), depth + 1)
        return self._typed(schema, depth)

    def _typed(self, schema: dict[str, Any], depth: int) -> Any:
        kind = schema.get("type", "object" if "properties" in schema else "string")
        if isinstance(kind, list):
            kind = kind[0] if kind else "null"
        match kind:
            case "object":
                return self._object(schema, depth)
            case "array":
                least = schema.get("minItems", 0 if depth > _DEPTH else min(2, schema.get("maxItems", 2)))
                return [self.value(schema.get("items", {"type": "string"}), depth + 1) for _ in range(least)]
            case "integer" | "number":
                low = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
                high = schema.get("maximum", schema.get("exclusiveMaximum", low + 101) - 1)
                number = self._rng.randint(int(low), max(int(low), int(high)))
                return number if kind == "integer" else float(number)
            case "boolean":
                return self._rng.random() < 0.5
            case "null":
                return None
        text = self._rng.choice(_WORDS)
        return text.ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength")]

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        properties, required = schema.get("properties") or {}, schema.get("required") or ()
        names = [name for name in properties if name in required or depth <= _DEPTH]
        return {name: self.value(properties[name], depth + 1) for name in names}

    def _merged(self, schema: dict[str, Any], parts: list[Any]) -> dict[str, Any]:
        merged = {name: value for name, value in schema.items() if name != "allOf"}
        for part in parts:
            found = self._resolve(part["$ref"]) if isinstance(part, dict) and "$ref" in part else part
            if isinstance(found, dict):
                merged = {
                    **merged,
                    **found,
                    "properties": {**merged.get("properties", {}), **found.get("properties", {})},
                    "required": [*merged.get("required", ()), *found.get("required", ())],
                }
        return merged

    def _resolve(self, reference: str) -> Any:
        found = self._root
        for step in reference.removeprefix("#").strip("/").split("/"):
            found = found.get(step.replace("~1", "/").replace("~0", "~")) if step and isinstance(found, dict) else found
        return found
