"""``/v1/batches``: a file of requests becomes a run of the fleet's workers, which outlives the front door."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types import Batch
from openai.types.chat import ChatCompletion
from openai.types.completion import Completion

from brimful.request import Request
from brimful.state.callers.tokens import add_caller, change_caller, revoke_caller
from brimful.state.keys import caller_batches_key, caller_starts_key, caller_tokens_keys
from brimful.state.redis_url import sync_redis_client
from brimful.state.runs.entry import Asked, RunState
from brimful.state.runs.registry import ask, read_entries
from brimful_worker.local.server.valkey import Valkey
from brimful_worker.serve.batches import drive, record, store
from brimful_worker.serve.batches.drive import Drive
from brimful_worker.serve.callers.usage import Account
from brimful_worker.serve.records import Owner
from brimful_worker.serve.refusals import Refusal
from support.commands import nothing_left
from support.doors import Door, door, door_process, until_ready
from support.fleets import Fleet, fleet
from support.gateways import gateway_process
from support.waiting import wait_until, wait_until_async

KEY = "sk-fleet"
NOWHERE = "http://127.0.0.1:1/v1"
OVER = ("completed", "failed", "expired", "cancelled")


def line(place: int, **body: Any) -> dict[str, Any]:
    asked = {"model": "llama-8b", "prompt": f"prompt {place}", "max_tokens": 4, **body}
    return {"custom_id": f"c{place}", "method": "POST", "url": "/v1/completions", "body": asked}


def lines(*found: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in found)


def parsed(content: bytes) -> list[dict[str, Any]]:
    return [json.loads(each) for each in content.splitlines()]


async def create(api: AsyncOpenAI, data: bytes, endpoint: Any = "/v1/completions", **more: Any) -> Batch:
    made = await api.files.create(file=("in.jsonl", data), purpose="batch")
    window: Any = more.pop("completion_window", "24h")
    return await api.batches.create(input_file_id=made.id, endpoint=endpoint, completion_window=window, **more)


async def end_of(api: AsyncOpenAI, batch: Batch, timeout: float = 90) -> Batch:
    found = batch

    async def over() -> bool:
        nonlocal found
        found = await api.batches.retrieve(batch.id)
        Batch.model_validate(found.model_dump(), strict=True)
        return found.status in OVER

    await wait_until_async(over, f"the end of {batch.id}", timeout)
    return found


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    with (
        gateway_process("--latency", "0.1", "--per-token", "0") as gateway,
        fleet(monkeypatch, gateway, workers=1) as it,
    ):
        yield it


async def test_two_hundred_lines_give_two_hundred_results(monkeypatch: pytest.MonkeyPatch, workers: Fleet) -> None:
    redis_url = workers.local.redis_url
    async with (
        door(monkeypatch, redis_url, workers.gateway.url, key=KEY, clean=False) as here,
        here.openai() as api,
    ):
        asked = [line(place) for place in range(199)] + [line(199, n=2, stream=False, stop=None)]
        data = b"\xef\xbb\xbf" + lines(*asked).replace(b"\n", b"\r\n") + b"\r\n"
        made = await create(api, data, metadata={"for": "a test"})
        assert (made.status, made.metadata) == ("validating", {"for": "a test"})
        found = await end_of(api, made)
        assert (found.status, found.errors, found.error_file_id) == ("completed", None, None)
        assert found.request_counts is not None
        assert found.request_counts.model_dump() == {"completed": 200, "failed": 0, "total": 200}
        times = (found.created_at, found.in_progress_at, found.finalizing_at, found.completed_at)
        assert sorted(times) == list(times)
        assert found.model == "llama-8b"
        assert found.output_file_id is not None
        output = parsed((await api.files.content(found.output_file_id)).content)
        assert [each["custom_id"] for each in output] == [f"c{place}" for place in range(200)]
        for each in output:
            assert each.keys() == {"id", "custom_id", "response", "error"}
            assert (each["error"], each["response"]["status_code"]) == (None, 200)
            Completion.model_validate(each["response"]["body"], strict=True)
        assert [choice["index"] for choice in output[-1]["response"]["body"]["choices"]] == [0, 1]
        file = await api.files.retrieve(found.output_file_id)
        assert (file.purpose, file.filename) == ("batch_output", f"{found.id}_output.jsonl")
        folder = here.front.batches.of_batch(found.id)
        await wait_until_async(
            lambda: {path.name for path in folder.iterdir()} == {"batch.json", "lock"}, "its own files"
        )
        assert found.usage is not None
        assert found.usage.output_tokens == 4 * 201
        assert found.usage.total_tokens == found.usage.input_tokens + 4 * 201
        with pytest.raises(openai.ConflictError):
            await api.batches.cancel(found.id)
    ledger = workers.gateway.ledger()
    assert ledger["peak_active"] <= 16
    assert set(ledger["statuses"]) == {"200"}


async def test_chats_and_refused_requests(monkeypatch: pytest.MonkeyPatch, workers: Fleet) -> None:
    redis_url = workers.local.redis_url
    async with (
        door(monkeypatch, redis_url, workers.gateway.url, key=KEY, clean=False) as here,
        here.openai() as api,
    ):
        url = "/v1/chat/completions"
        messages = [{"role": "user", "content": "Hi"}]
        chats = [
            {"custom_id": name, "method": "POST", "url": url, "body": {"model": model, "messages": messages}}
            for name, model in (("good", "llama-8b"), ("bad", "no-such-model"))
        ]
        found = await end_of(api, await create(api, lines(*chats), url))
        assert found.status == "completed"
        assert found.request_counts is not None
        assert found.request_counts.model_dump() == {"completed": 1, "failed": 1, "total": 2}
        assert found.output_file_id
        assert found.error_file_id
        (good,) = parsed((await api.files.content(found.output_file_id)).content)
        assert good["custom_id"] == "good"
        ChatCompletion.model_validate(good["response"]["body"], strict=True)
        (bad,) = parsed((await api.files.content(found.error_file_id)).content)
        assert (bad["custom_id"], bad["error"]) == ("bad", None)
        assert bad["response"]["status_code"] >= 400
        assert bad["response"]["body"]["error"]["message"]


WRONG = [
    ("invalid_json_line", None, b"{'custom_id': 1}"),
    ("invalid_json_line", None, b"[]"),
    ("invalid_json_line", None, b"\xff"),
    ("missing_required_parameter", "custom_id", json.dumps(line(0) | {"custom_id": None}).encode()),
    ("invalid_custom_id", "custom_id", json.dumps(line(0) | {"custom_id": 7}).encode()),
    ("duplicate_custom_id", "custom_id", json.dumps(line(-1)).encode()),
    ("invalid_method", "method", json.dumps(line(0) | {"method": "GET"}).encode()),
    ("invalid_url", "url", json.dumps(line(0) | {"url": "/v1/chat/completions"}).encode()),
    ("invalid_request", "body", json.dumps(line(0) | {"body": "a"}).encode()),
    ("invalid_request", "body.temperature", json.dumps(line(0, temperature=float("nan"))).encode()),
    ("invalid_request", "body.seed", json.dumps(line(0, seed=2**63)).encode()),
    ("invalid_request", "body.stream", json.dumps(line(0, stream=True)).encode()),
    ("invalid_request", "body.prompt", json.dumps(line(0, prompt=None)).encode()),
    ("invalid_request", "body.model", json.dumps(line(0, model="")).encode()),
    ("unknown_parameter", "body.workload", json.dumps(line(0, workload="interactive")).encode()),
]


async def test_a_file_with_bad_lines_fails_as_a_whole(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    async with door(monkeypatch, valkey.url, NOWHERE, serve_batch_lines=16) as here, here.openai() as api:
        data = lines(line(-1)) + b"\n" + b"".join(wrong + b"\r\n" for _, _, wrong in WRONG)
        found = await end_of(api, await create(api, data))
        assert (found.status, found.failed_at is not None) == ("failed", True)
        assert found.errors is not None
        assert found.errors.data is not None
        places = [(each.line, each.code, each.param) for each in found.errors.data]
        assert places == [(number, code, param) for number, (code, param, _) in enumerate(WRONG, 3)]
        assert all(each.message for each in found.errors.data)
        assert (found.output_file_id, found.error_file_id) == (None, None)
        for data, code in ((b"\n\n", "empty_file"), (lines(*map(line, range(17))), "too_many_requests")):
            found = await end_of(api, await create(api, data))
            assert found.errors is not None
            assert [each.code for each in found.errors.data or []] == [code]


async def test_a_spent_budget_refuses_new_batches_only(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    with sync_redis_client(valkey.url) as client:
        token = add_caller(client, "", "ann", budget_tokens=10)
        async with door(monkeypatch, valkey.url, NOWHERE) as here, here.openai(api_key=token) as api:
            file = await api.files.create(file=b"{", purpose="batch")

            async def make(key: str) -> str:
                asked = api.batches.create(
                    input_file_id=file.id,
                    endpoint="/v1/completions",
                    completion_window="24h",
                    extra_headers={"Idempotency-Key": key},
                )
                return (await asked).id

            made = await make("first")
            caller = here.front.callers.named("ann")
            with here.front.usage.request(caller, 10, Account(sent=True)):
                pass  # without an answer, it is charged what it may have used
            with pytest.raises(openai.RateLimitError):
                await make("second")
            assert await make("first") == made


async def test_texts_that_utf_8_cannot_hold(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    async with door(monkeypatch, valkey.url, NOWHERE) as here, here.openai() as api:
        made = await create(api, lines(line(0, model="\ud800"))[:-1])
        document = {"input_file_id": made.input_file_id, "endpoint": made.endpoint, "completion_window": "24h"}
        status, _, other = await here.post("batches", {**document, "metadata": {"a": "\udfff"}})
        assert (status, other["metadata"]) == (200, {"a": "\udfff"})

        async def checked() -> bool:
            return (await api.batches.retrieve(made.id)).status == "in_progress"

        await wait_until_async(checked, "the check", 60)
        for id in (made.id, other["id"]):
            await api.batches.cancel(id)
            assert (await end_of(api, await api.batches.retrieve(id))).status == "cancelled"


@pytest.mark.parametrize(
    ("param", "change"),
    [
        ("endpoint", {"endpoint": "/v1/embeddings"}),
        ("completion_window", {"completion_window": "soon"}),
        ("completion_window", {"completion_window": None}),
        ("metadata", {"metadata": {"a": 1}}),
        ("output_expires_after", {"output_expires_after": {"anchor": "created_at", "seconds": 1}}),
        ("input_file_id", {"input_file_id": "file-none"}),
    ],
)
async def test_a_wrong_batch_is_refused(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey, param: str, change: dict[str, Any]
) -> None:
    async with door(monkeypatch, valkey.url, NOWHERE) as here, here.openai() as api:
        file = await api.files.create(file=b"x", purpose="batch")
        right = {"input_file_id": file.id, "endpoint": "/v1/completions", "completion_window": "24h"}
        status, _, answer = await here.post("batches", right | change)
        assert (status, answer["error"]["param"]) == (404 if param == "input_file_id" else 400, param)
        assert not here.front.batches.ids()


async def test_batches_are_their_caller_s_are_listed_and_created_once(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey
) -> None:
    with sync_redis_client(valkey.url) as client:
        tokens = [add_caller(client, "", name) for name in ("ann", "bob")]
    async with door(monkeypatch, valkey.url, NOWHERE) as here:
        ann, bob = (AsyncOpenAI(base_url=here.url, api_key=token, max_retries=0) for token in tokens)
        async with ann, bob:
            made = [await create(ann, b"{") for _ in range(3)]
            for batch in made:
                await end_of(ann, batch)
            assert [each.id async for each in ann.batches.list(limit=2)] == [batch.id for batch in reversed(made)]
            assert [each.id async for each in bob.batches.list()] == []
            for call in (bob.batches.retrieve, bob.batches.cancel):
                with pytest.raises(openai.NotFoundError) as raised:
                    await call(made[0].id)
                assert raised.value.code == "batch_not_found"
            with pytest.raises(openai.NotFoundError):  # a file of another caller's
                await bob.batches.create(
                    input_file_id=made[0].input_file_id, endpoint="/v1/completions", completion_window="24h"
                )
            file, key = made[0].input_file_id, {"Idempotency-Key": "once"}

            async def once(api: AsyncOpenAI, window: Any = "24h") -> str:
                url: Any = "/v1/completions"
                asked = api.batches.create(
                    input_file_id=file, endpoint=url, completion_window=window, extra_headers=key
                )
                return (await asked).id

            assert len({await once(ann) for _ in range(3)}) == 1
            assert len(here.front.batches.ids()) == 4
            with pytest.raises(openai.UnprocessableEntityError):
                await once(ann, "1h")


async def test_a_name_that_is_added_again_sees_nothing_of_its_former_holder(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey
) -> None:
    with sync_redis_client(valkey.url) as client:
        former = add_caller(client, "", "ann")
        async with door(monkeypatch, valkey.url, NOWHERE) as here:
            key = {"Idempotency-Key": "once"}
            async with here.openai(api_key=former) as api:
                theirs = await end_of(api, await create(api, b"{", extra_headers=key))
                old = await end_of(api, await create(api, b"{"))
            records = here.front.batches
            whole = records.load(old.id)
            assert whole is not None
            records.store(whole.model_copy(update={"caller_id": ""}))  # as an earlier version wrote it
            revoke_caller(client, "", "ann")
            token = add_caller(client, "", "ann")
            async with here.openai(api_key=token) as api:

                async def let_in() -> bool:
                    with contextlib.suppress(openai.AuthenticationError):
                        await api.files.list()
                        return True
                    return False

                await wait_until_async(let_in, "the new token")
                assert [each.id async for each in api.files.list()] == []
                assert [each.id async for each in api.batches.list()] == [old.id]
                with pytest.raises(openai.NotFoundError):
                    await api.batches.retrieve(theirs.id)
                with pytest.raises(openai.NotFoundError):
                    await api.files.content(theirs.input_file_id)
                assert (await create(api, b"{", extra_headers=key)).id != theirs.id
                answers = [here.front.once.claim(Owner("ann", id), "once", b"").key for id in ("1", "2")]
                assert len(set(answers)) == 2


async def test_a_batch_counts_for_its_caller_s_budget(monkeypatch: pytest.MonkeyPatch, workers: Fleet) -> None:
    redis_url = workers.local.redis_url
    with sync_redis_client(redis_url) as client:
        token = add_caller(client, "", "ann", budget_tokens=10_000, tokens_per_minute=10_000, starts=9, weight=1000)
    async with (
        door(monkeypatch, redis_url, workers.gateway.url, key=KEY, clean=False) as here,
        AsyncOpenAI(base_url=here.url, api_key=token, max_retries=0) as api,
    ):
        made = await create(api, lines(*map(line, range(10))))

        async def waits() -> bool:
            counts = (await api.batches.retrieve(made.id)).request_counts
            return counts is not None and counts.completed == 9

        await wait_until_async(waits, "all but one line", 90)
        with pytest.raises(openai.RateLimitError):
            await api.completions.create(model="llama-8b", prompt="a")
        starts = caller_starts_key("", "ann")
        with sync_redis_client(redis_url) as client:
            for id in client.zrange(starts, 0, -1):
                assert client.zscore(starts, id)
                client.zincrby(starts, -70_000, id)  # a minute passes
        found = await end_of(api, made)
        assert found.usage is not None

        async def usage() -> Any:
            root, header = here.url.removesuffix("/v1"), {"Authorization": f"Bearer {token}"}
            async with here.http.get(f"{root}/usage", headers=header) as answer:
                return await answer.json()

        total = found.usage.total_tokens

        async def counted() -> bool:
            shown = await usage()
            return bool((shown["requests"], shown["tokens"]) == (10, total))

        await wait_until_async(counted, "the batch to be counted")
        with sync_redis_client(redis_url) as client:
            assert client.zcard(starts) == 1, "its lines count in the minute in which they came"
            amounts = caller_tokens_keys("", "ann")[1]
            await wait_until_async(lambda: client.hget(amounts, "sum") == str(total), "what it has used to be counted")
            assert not client.exists(caller_batches_key(""))
            change_caller(client, "", "ann", budget_tokens=total)

        async def refused() -> bool:
            with contextlib.suppress(openai.RateLimitError):
                await api.batches.create(
                    input_file_id=found.input_file_id, endpoint="/v1/completions", completion_window="24h"
                )
                return False
            return True

        await wait_until_async(refused, "the budget to be at its end")


def refuses(here: Door, tokens: int) -> bool:
    """Whether ann's budget is too small for a request of so many tokens."""
    caller = here.front.callers.named("ann")
    assert caller is not None
    try:
        here.front.usage.check(caller, tokens)
    except Refusal:
        return True
    return False


async def test_batches_do_not_spend_the_same_budget(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    hold = sum(Request(line(place)["body"]).hold for place in range(10))
    with sync_redis_client(valkey.url) as client:
        token = add_caller(client, "", "ann", budget_tokens=hold + hold // 2)
        async with (
            door(monkeypatch, valkey.url, NOWHERE) as one,
            door(monkeypatch, valkey.url, NOWHERE, clean=False) as two,
            one.openai(api_key=token) as here,
            two.openai(api_key=token) as there,
        ):
            data = lines(*map(line, range(10)))
            for each in (one, two):
                await wait_until_async(each.front.callers.known.is_set, "the callers to be known")
            first = await create(here, data)
            await wait_until_async(lambda: client.exists(caller_batches_key("")), "the budget to be held")
            second = await end_of(there, await create(there, data))
            assert second.status == "failed"
            assert second.errors is not None
            assert second.errors.data is not None
            assert [fault.code for fault in second.errors.data] == ["insufficient_quota"]
            assert f"this batch may use up to {hold}" in str(second.errors.data[0].message)
            await wait_until_async(lambda: refuses(two, hold), "the hold to be read")
            with pytest.raises(openai.RateLimitError) as raised:
                await there.completions.create(model="llama-8b", prompt="a", max_tokens=hold)
            assert "held by requests and batches under way" in raised.value.message
            await here.batches.cancel(first.id)
            assert (await end_of(here, first)).status == "cancelled"
            await wait_until_async(lambda: not client.exists(caller_batches_key("")), "nothing to be held")
            third = await create(there, data)
            await wait_until_async(lambda: client.exists(caller_batches_key("")), "the next one to hold it")
            await there.batches.cancel(third.id)
            await end_of(there, third)


async def test_without_workers_it_waits_and_can_be_cancelled(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    async with door(monkeypatch, valkey.url, NOWHERE) as here, here.openai() as api:
        made = await create(api, lines(line(0)))

        async def runs() -> bool:
            folder = here.front.batches.of_batch(made.id)
            found = await api.batches.retrieve(made.id)
            return found.status == "in_progress" and (folder / "out.jsonl.run.json").exists()

        await wait_until_async(runs, "the run to begin", 60)
        assert (await api.batches.cancel(made.id)).status == "cancelling"
        found = await end_of(api, made)
        assert (found.status, found.output_file_id, found.error_file_id) == ("cancelled", None, None)
        assert found.cancelled_at is not None
        assert found.cancelling_at is not None


async def test_a_run_that_refuses_its_input_says_why(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    monkeypatch.setattr(Drive, "most_refusals", 1)
    async with door(monkeypatch, valkey.url, NOWHERE) as here, here.openai() as api:
        found = await end_of(api, await create(api, lines(line(0, n=200_000, max_tokens=1))))
        assert found.status == "failed"
        assert found.errors is not None
        (fault,) = found.errors.data or []
        assert fault.code == "run_failed"
        assert "n: 200,000 rollouts in one line" in fault.message


@pytest.mark.parametrize("ending", ["cancelled", "expired"])
async def test_what_is_finished_is_kept(monkeypatch: pytest.MonkeyPatch, workers: Fleet, ending: str) -> None:
    workers.gateway.set_options(latency_s=1.0)
    redis_url = workers.local.redis_url
    async with (
        door(monkeypatch, redis_url, workers.gateway.url, key=KEY, clean=False) as here,
        here.openai() as api,
    ):
        made = await create(api, lines(*(line(place, seed=place) for place in range(200))))  # seeds: not packed

        async def some() -> bool:
            counts = (await api.batches.retrieve(made.id)).request_counts
            return counts is not None and counts.completed > 0

        await wait_until_async(some, "the first results", 60)
        if ending == "cancelled":
            await api.batches.cancel(made.id)
        else:
            late = SimpleNamespace(time=lambda: made.created_at + 25 * 3600)
            monkeypatch.setattr(drive, "time", late)
        found = await end_of(api, made)
        assert found.status == ending
        counts = found.request_counts
        assert counts is not None
        assert 0 < counts.completed < 200
        assert found.output_file_id is not None
        output = parsed((await api.files.content(found.output_file_id)).content)
        assert len({each["custom_id"] for each in output}) == len(output) == counts.completed
        if ending == "expired":
            assert found.error_file_id is not None
            left = parsed((await api.files.content(found.error_file_id)).content)
            assert {each["error"]["code"] for each in left} == {"batch_expired"}
            assert len({each["custom_id"] for each in (*left, *output)}) == 200 == len(left) + len(output)
        else:
            assert found.error_file_id is None


def _ask_held(redis_url: str, batch: str, asked: Asked, state: RunState) -> None:
    """Ask the run of a batch once it is under way, held unless ``asked`` is to hold it, and wait until it obeys."""
    before = RunState.RUNNING if asked is Asked.HOLD else RunState.HELD
    with sync_redis_client(redis_url) as client:

        def runs(state: RunState) -> list[str]:
            mine = (entry for entry in read_entries(client, live=True) if entry.batch == batch)
            return [entry.run for entry in mine if entry.state == state]

        wait_until(lambda: runs(before), f"the batch to be {before}", 60)
        ask(client, *runs(before), asked, "bea@desk")
        wait_until(lambda: runs(state), f"the batch to be {state}", 60)


@pytest.mark.parametrize(
    "end",
    [
        "kill all",
        pytest.param("terminate", marks=pytest.mark.compat),
        pytest.param("kill beside another", marks=pytest.mark.compat),
    ],
)
def test_a_batch_outlives_its_front_door(workers: Fleet, end: str, tmp_path: Path) -> None:
    gateway, redis_url = workers.gateway, workers.local.redis_url
    gateway.set_options(latency_s=0.5)
    env = {"ACS_API_KEY": KEY, "BRIMFUL_SERVE_DATA": str(tmp_path / "data")}
    asked = [line(place, seed=place, prompt=f"canary {place}") for place in range(200)]
    with contextlib.ExitStack() as stack:
        url, running = stack.enter_context(door_process(redis_url, gateway.url, **env))
        api = stack.enter_context(OpenAI(base_url=url, api_key="any", max_retries=0))
        until_ready(url)
        file = api.files.create(file=("in.jsonl", lines(*asked)), purpose="batch")
        made = api.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")

        def completed() -> int:
            counts = api.batches.retrieve(made.id).request_counts
            return counts.completed if counts is not None else 0

        wait_until(completed, "the first results", 60)
        if end == "kill beside another":
            other, _ = stack.enter_context(door_process(redis_url, gateway.url, **env))
            until_ready(other)
        family = running.look()
        assert family, "the run is a process of its own"
        if end == "terminate":
            _ask_held(redis_url, made.id, Asked.HOLD, RunState.HELD)
            running.process.terminate()
        else:
            for process in (running.process, *(family if end == "kill all" else ())):
                process.kill()
        assert running.process.stdout is not None
        log = running.process.stdout.read()
        running.process.wait(60)
        assert "canary" not in log
        nothing_left(family)
        if end != "kill beside another":
            other, _ = stack.enter_context(door_process(redis_url, gateway.url, **env))
            until_ready(other)
        if end == "terminate":
            _ask_held(redis_url, made.id, Asked.NOTHING, RunState.RUNNING)
        with OpenAI(base_url=other, api_key="any", max_retries=0) as api:
            wait_until(lambda: api.batches.retrieve(made.id).status == "completed", "the batch to end", 90)
            found = api.batches.retrieve(made.id)
            assert found.request_counts is not None
            assert found.request_counts.model_dump() == {"completed": 200, "failed": 0, "total": 200}
            assert found.output_file_id is not None
            output = parsed(api.files.content(found.output_file_id).content)
        assert [each["custom_id"] for each in output] == [f"c{place}" for place in range(200)]
    times = Counter(sum(each["sampled"]) for each in gateway.sampled([each["body"]["prompt"] for each in asked]))
    assert times == {1: 200}
    assert gateway.ledger()["peak_active"] <= 16


def test_the_sweep_deletes_batches_that_ended_long_ago(tmp_path: Path) -> None:
    batches, upload = store.Batches(tmp_path / "batches", keep_s=100), tmp_path / "upload"
    upload.write_bytes(b"x")
    old, running = (
        batches.create(
            record.Batch(
                id=store.new_id(),
                caller="",
                endpoint="/v1/completions",
                input_file_id="",
                completion_window="24h",
                created=0,
                expires_at=1,
                output_keep_s=1,
            ),
            upload,
        )
        for _ in range(2)
    )
    old.end("completed", 1)
    batches.store(old)
    assert batches.delete_expired(99) == 0
    assert batches.delete_expired(100) == 1
    assert batches.ids() == [running.id]
