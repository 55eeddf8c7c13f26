"""``/v1/files``: a caller's files on disk, as OpenAI's client sends and reads them."""

from __future__ import annotations

import errno
import io
import time
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web
from aiohttp.typedefs import Handler

from brimful_worker.local.server.valkey import Valkey
from brimful_worker.serve import app
from brimful_worker.serve.caller import CALLER, Caller
from brimful_worker.serve.files import store
from brimful_worker.serve.files.store import Files, StoredFile, new_id
from support.doors import door

NOWHERE = "http://127.0.0.1:1/v1"
"""Files need no provider."""


@pytest.fixture
def by_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller's token is its name."""

    @web.middleware
    async def identify(request: web.Request, handler: Handler) -> web.StreamResponse:
        request[CALLER] = Caller(request.headers["Authorization"].removeprefix("Bearer "))
        return await handler(request)

    monkeypatch.setattr(app, "identify", identify)


async def test_a_file_is_stored_listed_read_and_deleted(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey, tmp_path: Path
) -> None:
    data = "\ufeffline\r\n".encode() * 300_000  # several writes
    (tmp_path / "in.jsonl").write_bytes(data)
    async with door(monkeypatch, valkey.url, NOWHERE) as here, here.openai() as api:
        made = await api.files.create(file=tmp_path / "in.jsonl", purpose="batch")
        assert (made.bytes, made.filename, made.purpose, made.status) == (len(data), "in.jsonl", "batch", "processed")
        assert made.expires_at == made.created_at + 30 * 24 * 3600
        type(made).model_validate(made.model_dump(), strict=True)
        assert await api.files.retrieve(made.id) == made
        assert (await api.files.content(made.id)).content == data
        more = [await api.files.create(file=(f"{i}", b"x"), purpose="batch") for i in range(3)]
        newest_first = [*(each.id for each in reversed(more)), made.id]
        assert [each.id async for each in api.files.list(limit=2)] == newest_first
        assert [each.id async for each in api.files.list(order="asc")] == newest_first[::-1]
        assert [each.id async for each in api.files.list(purpose="batch_output")] == []
        short = await api.files.create(
            file=b"x", purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
        )
        assert short.expires_at == short.created_at + 3600
        assert (await api.files.delete(made.id)).deleted
        with pytest.raises(openai.NotFoundError) as raised:
            await api.files.content(made.id)
        assert raised.value.code == "file_not_found"


async def test_a_caller_s_files_are_nobody_else_s(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey, by_token: None
) -> None:
    async with door(monkeypatch, valkey.url, NOWHERE) as here:
        ann, bob = (openai.AsyncOpenAI(base_url=here.url, api_key=name, max_retries=0) for name in ("ann", "bob"))
        async with ann, bob:
            made = await ann.files.create(file=b"x", purpose="batch")
            assert [each.id async for each in bob.files.list()] == []
            for call in (bob.files.retrieve, bob.files.content, bob.files.delete):
                with pytest.raises(openai.NotFoundError):
                    await call(made.id)
            assert (await ann.files.content(made.id)).content == b"x"


@pytest.mark.parametrize(
    ("status", "param", "fields"),
    [
        (400, "purpose", {"file": b"x"}),
        (400, "purpose", {"file": b"x", "purpose": "fine-tune"}),
        (400, "file", {"purpose": "batch"}),
        (413, "file", {"file": b"x" * 1001, "purpose": "batch"}),
        (413, "file", {"file": b"x" * 3_000_000, "purpose": "batch"}),
        (400, None, {"file": b"x", "purpose": "b" * 5000}),
        (400, "expires_after", {"file": b"x", "purpose": "batch", "expires_after[seconds]": "1"}),
    ],
)
async def test_a_wrong_upload_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
    valkey: Valkey,
    tmp_path: Path,
    status: int,
    param: str | None,
    fields: dict[str, Any],
) -> None:
    async with door(monkeypatch, valkey.url, NOWHERE, serve_data=tmp_path / "data", serve_file_max=1000) as here:
        form = aiohttp.FormData(default_to_multipart=True)
        for name, value in fields.items():
            is_file = isinstance(value, bytes)
            form.add_field(name, io.BytesIO(value) if is_file else value, filename="in.jsonl" if is_file else None)
        async with here.http.post(f"{here.url}/files", data=form) as answer:
            assert answer.status == status
            assert (await answer.json())["error"]["param"] == param
        assert not list((tmp_path / "data" / "files").iterdir())


async def test_what_is_no_form_and_no_id(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    async with door(monkeypatch, valkey.url, NOWHERE) as here:
        assert (await here.post("files", {"purpose": "batch"}))[0] == 400
        kind = {"Content-Type": "multipart/form-data; boundary=x"}
        async with here.http.post(f"{here.url}/files", data=b"no form", headers=kind) as answer:
            assert answer.status == 400
        for id in ("file-1", "..%2f..%2fetc%2fpasswd", "file-" + "0" * 32):
            async with here.http.get(f"{here.url}/files/{id}/content") as answer:
                assert answer.status == 404
                assert "error" in await answer.json()


PART = b"--x\r\nContent-Disposition: form-data; name="
WHOLE = b"\r\nbatch\r\n--x--\r\n"


@pytest.mark.parametrize(
    ("status", "headers", "rest"),
    [
        (200, b'; filename="\xe9.jsonl"', WHOLE),
        (400, b"\r\nno header", WHOLE),
        (400, b"\r\nA: " + b"b" * 100_000, WHOLE),
        (400, b"".join(b"\r\nA%d: b" % i for i in range(400)), WHOLE),
        (400, b"", b"Conte"),
        (400, b"", b"\r\nbatch\r\n" + PART + b"_charset_\r\n\r\n" + b"u" * 50 + b"\r\n--x--\r\n"),
    ],
    ids=["latin name", "no header", "long header", "many headers", "cut off", "charset"],
)
async def test_parts_that_are_damaged(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey, tmp_path: Path, status: int, headers: bytes, rest: bytes
) -> None:
    form = PART + b"file" + headers + b"\r\n\r\nx\r\n" + PART + b"purpose\r\n" + rest
    async with door(monkeypatch, valkey.url, NOWHERE, serve_data=tmp_path / "data") as here:
        kind = {"Content-Type": "multipart/form-data; boundary=x"}
        async with here.http.post(f"{here.url}/files", data=form, headers=kind) as answer:
            assert (answer.status, (await answer.json()).get("filename")) == (
                status,
                "?.jsonl" if status == 200 else None,
            )
        assert len(list((tmp_path / "data" / "files").iterdir())) == (2 if status == 200 else 0)


async def test_a_disk_without_room_for_the_record_keeps_no_data(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey, tmp_path: Path
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store, "write_record", full)
    async with door(monkeypatch, valkey.url, NOWHERE, serve_data=tmp_path / "data") as here, here.openai() as api:
        with pytest.raises(openai.APIStatusError) as raised:
            await api.files.create(file=b"x", purpose="batch")
        assert raised.value.status_code == 507
        assert not list((tmp_path / "data" / "files").iterdir())


def test_the_sweep_deletes_what_has_expired_and_what_dead_processes_left(tmp_path: Path) -> None:
    files, now = Files(tmp_path / "files"), time.time()
    kept, gone = new_id(), new_id()
    for id, expires in ((kept, now + 100), (gone, now + 10)):
        data = files.unfinished()
        data.write_bytes(b"x")
        files.add(data, StoredFile(id=id, caller="", bytes=1, created=now, expires=expires, filename="", purpose=""))
    lost = files.unfinished()
    lost.write_bytes(b"x")
    assert files.delete_expired(now + 50) == 1
    assert files.data(kept).exists()
    assert not files.data(gone).exists()
    assert lost.exists(), "it may still grow"
    files.delete_expired(now + 100_000)
    assert not list(files.folder.iterdir())
