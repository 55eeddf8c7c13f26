"""What single requests and their results take of Redis's memory: docs/redis.md gives these figures."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from brimful.addresses import FleetAddress
from brimful.celery import app_for
from brimful_worker.local.server.valkey import Valkey

COUNT = 300


def used(client: redis.Redis) -> int:
    info: Any = client.info("memory")
    return int(info["used_memory"])


def test_a_waiting_request_takes_a_kilobyte_and_four_thirds_of_its_prompt(valkey: Valkey) -> None:
    with (
        app_for(FleetAddress(valkey.url)) as app,
        redis.Redis(port=valkey.port) as client,
        app.connection_for_write() as connection,
    ):
        producer = app.amqp.Producer(connection)

        def send(chars: int, count: int) -> int:
            for _ in range(count):
                app.send_task("brimful.sample", ("x" * chars,), {"max_tokens": 16}, queue="batch", producer=producer)
            return used(client)

        before = send(100, 50)  # the connections have buffers too
        for chars in (100, 4000):
            after = send(chars, COUNT)
            assert 500 < (after - before) / COUNT < 1400 + 4 / 3 * chars, chars
            before = after


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # by Celery
def test_a_result_takes_little_more_than_its_text(valkey: Valkey) -> None:
    choice = {"text": "y" * 1000, "index": 0, "logprobs": None, "finish_reason": "length"}
    usage = {"prompt_tokens": 25, "completion_tokens": 250, "total_tokens": 275}
    completion = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "llama-8b", "usage": usage}
    with app_for(FleetAddress(valkey.url)) as app, redis.Redis(port=valkey.port) as client:
        app.backend.store_result("first", completion, "SUCCESS")
        before = used(client)
        for number in range(COUNT):
            app.backend.store_result(f"{number:032d}", {**completion, "choices": [choice]}, "SUCCESS")
        assert 1000 < (used(client) - before) / COUNT < 2000
