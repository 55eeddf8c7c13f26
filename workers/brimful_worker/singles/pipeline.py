"""Redis commands of many coroutines in one pipeline, so that each does not take a connection of its own."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio import Redis

from brimful.runtime.aio import cancel_and_wait
from brimful.state.redis_retry import REDIS_ERRORS


class SharedPipeline:
    """Sends what was asked while the previous pipeline was on its way. One connection for all."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._waiting: list[tuple[tuple[Any, ...], asyncio.Future[Any]]] = []
        self._some = asyncio.Event()
        self._sender: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._sender = asyncio.create_task(self._send())

    async def aclose(self) -> None:
        if self._sender is not None:
            await cancel_and_wait([self._sender])
        for _, answered in self._waiting:
            answered.cancel()

    def ask(self, *command: Any) -> asyncio.Future[Any]:
        """The command's answer. Fails with redis.RedisError or OSError; nobody needs to await it."""
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answered.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._waiting.append((command, answered))
        self._some.set()
        return answered

    async def _send(self) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            waiting, self._waiting = self._waiting, []
            try:
                answers = await self._execute([command for command, _ in waiting])
            except REDIS_ERRORS as error:
                for _, answered in waiting:
                    if not answered.done():
                        answered.set_exception(error)
            else:
                for (_, answered), answer in zip(waiting, answers, strict=True):
                    if not answered.done():
                        answered.set_result(answer)

    async def _execute(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        if len(commands) == 1:  # half the cost of a pipeline
            return [await self._client.execute_command(*commands[0])]  # type: ignore[no-untyped-call]
        async with self._client.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            return await pipe.execute()
