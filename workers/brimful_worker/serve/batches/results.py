"""A batch's output and error files, made of what its run has written."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from brimful.runtime import json_bytes
from brimful.runtime.atomic import atomic_write
from brimful_worker.serve.batches.record import Batch
from brimful_worker.serve.batches.run_files import RunFiles
from brimful_worker.serve.files.store import Files, StoredFile

_EXPIRED = {
    "code": "batch_expired",
    "message": "This request could not be executed before the completion window expired.",
}


def publish(batch: Batch, run: RunFiles, files: Files) -> None:
    """Put the files and their counts into the record, which is not stored. Repeatable. Raises OSError, FleetError."""
    done = set()
    batch.input_tokens = batch.output_tokens = 0
    for line in _lines(run.output):
        done.add(line["custom_id"])
        usage = line["response"]["body"]["usage"]
        batch.input_tokens += usage.get("prompt_tokens") or 0
        batch.output_tokens += usage.get("completion_tokens") or 0
    batch.completed = len(done)
    if done:
        data = files.unfinished()
        os.link(run.output, data)  # the run replaces its output and never changes it
        batch.output_file_id = _add(batch, "output", data, files)
    data = files.unfinished()
    batch.failed = _write_errors(batch, run, done, data)
    if batch.failed:
        batch.error_file_id = _add(batch, "error", data, files)
    else:
        data.unlink()


def _write_errors(batch: Batch, run: RunFiles, done: set[str], path: Path) -> int:
    """Returns the number of lines, one for each request that has no output and will not get one."""
    seen = set(done)
    with atomic_write(path) as file:
        for line in _lines(run.errors):
            if line["custom_id"] not in seen:
                seen.add(line["custom_id"])
                file.write(json_bytes.encode(line | ({"error": None} if line["response"] else {})) + b"\n")
        if batch.ending == "expired":
            for number, line in enumerate(_lines(run.input), 1):
                if line["custom_id"] not in seen:
                    seen.add(line["custom_id"])
                    left = {"id": f"batch_req_{number:012d}", "custom_id": line["custom_id"]}
                    file.write(json_bytes.encode({**left, "response": None, "error": _EXPIRED}) + b"\n")
    return len(seen) - len(done)


def _add(batch: Batch, kind: str, data: Path, files: Files) -> str:
    """The same id each time: a front door that died here has done so already, or in part."""
    now = time.time()
    stored = StoredFile(
        id=f"file-{hashlib.sha256(f'{batch.id} {kind}'.encode()).hexdigest()[:32]}",
        caller=batch.caller,
        caller_id=batch.caller_id,
        bytes=data.stat().st_size,
        created=now,
        expires=now + batch.output_keep_s,
        filename=f"{batch.id}_{kind}.jsonl",
        purpose="batch_output",
    )
    files.add(data, stored)
    return stored.id


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            yield from map(json_bytes.decode, file)
    except FileNotFoundError:
        return
