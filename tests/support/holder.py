"""A process that holds slots around requests to the ledger: ``python -m support.holder '<JSON>'``.

It prints a JSON line when it is ready, and one per command line on stdin (``stats``); it ends with stdin.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from typing import IO, Any

from support.forked import Forked


class Holder:
    """The process, as the test controls it."""

    def __init__(self, url: str, ledger_port: int, *, errors: IO[bytes] | None = None, **options: Any) -> None:
        """``errors``: gets its standard error. Options: tag, limits (of Limits), coroutines, hold_s, workload, name,
        requests (per coroutine; 0 = for ever), spread (of hold_s), block_s (blocks the event loop once, after the first
        grant), offset_s (of time.time), names (of the coroutines' requests), guardian, start_s (for which it tries to
        join), stepped (Redis's clock is that of ``stepped_script``)."""
        spec = {"url": url, "port": ledger_port, **options}
        self.process = Forked(
            "support.holder",
            json.dumps(spec),
            env=os.environ,
            stdin=subprocess.PIPE,
            stderr=2 if errors is None else errors.fileno(),
        )

    def ready(self) -> Holder:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert json.loads(line or "null") == "ready", line
        return self

    def stats(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("stats\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def kill(self) -> None:
        self.process.kill()
        self.close()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


async def _hold(spec: dict[str, Any]) -> None:
    from brimful_worker.admission import Admission, LeaseLost, Limits, StaleGrant

    if spec.get("stepped"):
        from brimful_worker.admission.wire import rpc
        from support.admission_peers import stepped_script

        rpc.exchange = stepped_script
    if offset := spec.get("offset_s", 0.0):
        real = time.time
        time.time = lambda: real() + offset
    name = spec.get("name", "holder")
    admission = Admission(
        spec["url"], spec.get("tag", "tag"), Limits(**spec["limits"]), name=name, guardian=spec.get("guardian", False)
    )
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    stats = {"done": 0, "stale": 0, "lost": 0, "cut": 0, "longest": 0.0}
    waits: list[float] = []
    block_s = spec.get("block_s", 0.0)

    names, deaths = spec.get("names", ()), {}

    async def one(named: str) -> None:
        nonlocal block_s
        async with admission.slot(spec.get("workload", "batch"), tokens=spec.get("tokens", 0), name=named) as lease:
            deaths[named] = lease.deaths
            waits.append(lease.waited_s)
            stats["longest"] = max(stats["longest"], lease.waited_s)
            reader, writer = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", spec["port"])
            at = time.monotonic()
            lease.sent()
            lease.watch(writer.transport)
            hold = spec.get("hold_s", 0.1) * (1 + spec.get("spread", 0.0) * (2 * random.random() - 1))
            writer.write(f"{name} {hold} {at}\n".encode())
            if block_s:
                seconds, block_s = block_s, 0.0
                await asyncio.sleep(0.01)
                time.sleep(seconds)  # noqa: ASYNC251 - somebody's blocking code
            try:
                answer = await reader.readline()
            except BaseException:
                writer.close()
                raise
            if answer != b"done\n":
                writer.close()
                stats["cut"] += 1
                lease.report(ok=None)
                return
            idle.append((reader, writer))
            lease.report(ok=True)
            stats["done"] += 1

    async def worker(named: str) -> None:
        left = spec.get("requests", 0)
        while left or not spec.get("requests", 0):
            try:
                await one(named)
                left -= 1
            except StaleGrant:
                stats["stale"] += 1
            except LeaseLost:
                stats["lost"] += 1

    await admission.start(spec.get("start_s", 10.0))
    async with contextlib.aclosing(admission):
        print(json.dumps("ready"), flush=True)
        workers = [asyncio.create_task(worker(named)) for named in names or [""] * spec.get("coroutines", 16)]
        stdin = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
        while await stdin.readline():
            finished = all(task.done() for task in workers)
            for task in workers:
                if task.done() and not task.cancelled() and task.exception():
                    raise RuntimeError("a worker failed") from task.exception()
            extra = {"commands": admission.commands, "held": admission.held, "finished": finished}
            print(json.dumps({**stats, **extra, "waits": waits, "deaths": deaths}), flush=True)
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


if __name__ == "__main__":
    import uvloop

    logging.basicConfig(level=os.environ.get("HOLDER_LOG", "ERROR"), stream=sys.stderr)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_hold(json.loads(sys.argv[1])))
