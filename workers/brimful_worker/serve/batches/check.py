"""Checks a batch's file as a whole, and writes the run's input: either all lines are sampled, or none is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brimful.errors import BadRequest
from brimful.names import Mode, Workload
from brimful.packing.request_size import check_line, line_profile
from brimful.profile import Profile
from brimful.request import CONTROL_FIELDS, Request
from brimful.runtime import json_bytes
from brimful.runtime.atomic import atomic_write
from brimful_worker.serve.batches.record import ENDPOINTS, Fault
from brimful_worker.serve.refusals import described

_MOST_FAULTS = 100
_MOST_LINE = 64 * 2**20
"""Bytes, as of a body of the other endpoints."""
_MOST_ID = 512
_BOM = b"\xef\xbb\xbf"


@dataclass
class Checked:
    """What the check of a file found."""

    total: int = 0
    """Requests."""
    faults: list[Fault] = field(default_factory=list)
    hold: int = 0
    """Tokens that they may use, as estimated."""
    models: set[str] = field(default_factory=set)


class _Wrong(Exception):
    """A fault of a line."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


def check(
    upload: Path, run_input: Path, endpoint: str, profile: Profile, most_lines: int, most_tokens: int = 0
) -> Checked:
    """Write ``run_input``, with a line for each request. ``most_lines``: requests in a file. ``most_tokens``: the
    tokens that a line may use; 0: no limit.

    Raises OSError and FleetError.
    """
    found, ids = Checked(), _Ids()
    checker = _Checker(endpoint, profile, most_tokens)
    with atomic_write(run_input) as out:
        for number, data in _lines(upload):
            if found.total == most_lines:
                text = f"the file has more than {most_lines:,} requests (BRIMFUL_SERVE_BATCH_LINES)"
                found.faults.append(Fault(code="too_many_requests", message=text, line=number))
                break
            found.total += 1
            try:
                line = checker.line(data)
                ids.add(line["custom_id"], number)
            except _Wrong as wrong:
                found.faults.append(Fault(code=wrong.code, message=str(wrong), line=number, param=wrong.param))
                if len(found.faults) == _MOST_FAULTS:
                    break
            else:
                found.hold += checker.hold
                found.models.add(str(line["body"].get("model") or profile.model))
                out.write(json_bytes.encode(line) + b"\n")
    if not found.total:
        found.faults.append(Fault(code="empty_file", message="the file has no requests"))
    return found


def _lines(upload: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers. A byte order mark and CRs are dropped."""
    with upload.open("rb") as file:
        number = 0
        while data := file.readline(_MOST_LINE + 1):
            number += 1
            if number == 1:
                data = data.removeprefix(_BOM)
            if data.strip():
                yield number, data
            if len(data) > _MOST_LINE:
                return  # the line is refused, and what follows is not another one


class _Ids:
    """The custom ids so far, and their lines."""

    def __init__(self) -> None:
        self._lines: dict[str, int] = {}

    def add(self, id: str, number: int) -> None:
        if (first := self._lines.setdefault(id, number)) != number:
            raise _Wrong("duplicate_custom_id", f"custom_id: is that of line {first} too", "custom_id")


class _Checker:
    """Of the lines of one file."""

    def __init__(self, endpoint: str, profile: Profile, most_tokens: int) -> None:
        self._endpoint = endpoint
        self._mode = ENDPOINTS[endpoint]
        self._profile = profile
        self._most_tokens = most_tokens
        self.hold = 0
        """Tokens that the last line may use."""
        self._unbounded = line_profile(profile)  # what is too large for one request is split

    def line(self, data: bytes) -> dict[str, Any]:
        """The line that the run gets. Raises _Wrong."""
        line = _object(data)
        id = line.get("custom_id")
        if id is None:
            raise _Wrong("missing_required_parameter", "custom_id: missing", "custom_id")
        if not isinstance(id, str) or not 0 < len(id) <= _MOST_ID:
            raise _Wrong("invalid_custom_id", f"custom_id: must be a string of 1 to {_MOST_ID} characters", "custom_id")
        if line.get("method", "POST") != "POST":
            raise _Wrong("invalid_method", "method: must be POST", "method")
        if "url" not in line:
            raise _Wrong("missing_required_parameter", "url: missing", "url")
        if line["url"] != self._endpoint:
            raise _Wrong("invalid_url", f"url: must be the batch's endpoint, {self._endpoint}", "url")
        if "body" not in line:
            raise _Wrong("missing_required_parameter", "body: missing", "body")
        if not isinstance(line["body"], dict):
            raise _Wrong("invalid_request", "body: must be an object", "body")
        return {"custom_id": id, "method": "POST", "url": self._endpoint, "body": self._body(line["body"])}

    def _body(self, given: dict[str, Any]) -> dict[str, Any]:
        own = next((name for name in given if name in CONTROL_FIELDS), None)
        if own is not None:  # the run would take it for an instruction
            raise _Wrong("unknown_parameter", f"{own}: is no field of a request", f"body.{own}")
        body = {name: value for name, value in given.items() if value is not None and (name != "stream" or value)}
        if self._mode is Mode.CHAT and "messages" not in body:
            raise _Wrong("missing_required_parameter", "messages: missing; a chat needs them", "body.messages")
        if "model" not in body and self._profile.model is None:
            raise _Wrong("missing_required_parameter", "model: missing", "body.model")
        request = Request(fields=body, mode=self._mode, workload=Workload.BATCH)
        try:
            request.check(self._unbounded)
            check_line(request, self._profile)
        except BadRequest as error:
            message, param = described(error)
            raise _Wrong("invalid_request", message, None if param is None else f"body.{param}") from None
        self.hold = request.hold
        if 0 < self._most_tokens < self.hold:
            most = f"more than its caller's limit of {self._most_tokens:,} a minute"
            text = f"may use {self.hold:,} tokens, {most}: lower max_tokens or n"
            raise _Wrong("rate_limit_exceeded", f"body: {text}", "body")
        return body


def _object(data: bytes) -> dict[str, Any]:
    if len(data) > _MOST_LINE:
        raise _Wrong("line_too_long", f"the line has more than {_MOST_LINE:,} bytes")
    try:
        line = json_bytes.decode(data)
    except (ValueError, RecursionError):
        raise _Wrong("invalid_json_line", "the line is not JSON") from None
    if not isinstance(line, dict):
        raise _Wrong("invalid_json_line", "the line is not a JSON object")
    return line
