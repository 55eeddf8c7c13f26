"""The data inside a report's page."""

from __future__ import annotations

import base64
import gzip
import json
import re
from array import array
from pathlib import Path
from typing import Any

_TYPES = {"Uint8": "B", "Uint16": "H", "Uint32": "I", "Float32": "f", "Float64": "d"}


class Page:
    def __init__(self, path: Path) -> None:
        self.text = path.read_text("utf-8")
        self.meta: dict[str, Any] = json.loads(self._block('id="meta"'))
        data = self._block('id="columns"')
        self.arrays: dict[str, list[Any]] = {}
        for place in self.meta["arrays"]:
            values = array(_TYPES[place["type"]])
            values.frombytes(data[place["at"] : place["at"] + place["length"] * values.itemsize])
            self.arrays[place["name"]] = values.tolist()

    @property
    def groups(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for start, end, content in re.findall(r'class="chunk" data-from="(\d+)" data-to="(\d+)">([^<]*)<', self.text):
            assert int(start) == len(found)
            found += json.loads(gzip.decompress(base64.b64decode(content)))
            assert int(end) == len(found)
        return found

    @property
    def script(self) -> str:
        (script,) = re.findall(r"<script>(.*?)</script>", self.text, re.DOTALL)
        return str(script)

    def words(self, key: str) -> list[str | None]:
        """The words of a column, by row."""
        words = next(column["words"] for column in self.meta["columns"] if column["key"] == key)
        return [words[code - 1] if code else None for code in self.arrays[f"codes {key}"]]

    def _block(self, attribute: str) -> bytes:
        (content,) = re.findall(rf'<script type="text/plain" {attribute}>([^<]*)</script>', self.text)
        return gzip.decompress(base64.b64decode(content))
