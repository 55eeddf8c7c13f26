"""A worker's memory limit: when it ends the worker, and when it does not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from brimful.config import Settings
from brimful.errors import SettingError
from brimful_worker.memory_limit import MemoryLimit, release_unused
from support.waiting import wait_until_async

MB = 1_000_000


class Worker:
    """Its sizes at each look, in MB, the first at its start; the last one lasts."""

    def __init__(self, *sizes: int) -> None:
        self._sizes: Iterator[int] = iter(sizes)
        self.size = 0
        self.looks = 0
        self.stopped = 0

    def limit(self, megabytes: int) -> MemoryLimit:
        return MemoryLimit(megabytes * MB, resident=self.resident, pause=self.pause, stop=self.stop)

    def resident(self) -> int:
        self.size = next(self._sizes, self.size)
        return self.size * MB

    async def pause(self) -> None:
        self.looks += 1
        await asyncio.sleep(0)

    def stop(self) -> None:
        self.stopped += 1


async def test_a_worker_that_stays_above_its_limit_is_stopped_once(caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker(80, 90, 190, 210, 220)
    with caplog.at_level(logging.WARNING):
        await asyncio.wait_for(worker.limit(200).watch(), 60)
    assert (worker.stopped, worker.looks) == (1, 4)
    assert "takes 220 MB of memory, more than BRIMFUL_WORKER_MAX_MEMORY = 200 MB" in caplog.text


async def test_a_peak_that_has_passed_at_the_next_look_does_not_stop_it() -> None:
    worker = Worker(80, *([300, 200] * 5), 100)
    watching = asyncio.create_task(worker.limit(200).watch())
    await wait_until_async(lambda: worker.looks >= 20, "twenty looks")
    assert not watching.done()
    assert not worker.stopped
    watching.cancel()


def test_a_limit_below_what_a_worker_takes_at_its_start_is_refused() -> None:
    with pytest.raises(
        SettingError, match=r"MAX_MEMORY: 75 MB is too little, as a worker takes 80 MB .*; set more than that"
    ):
        Worker(80).limit(75)


def test_unused_memory_can_be_returned() -> None:
    release_unused()


@pytest.mark.parametrize(("text", "size"), [("2GB", 2_000 * MB), ("512MiB", 512 * 2**20), ("1.5gb", 1_500 * MB)])
def test_the_setting_has_units(monkeypatch: pytest.MonkeyPatch, text: str, size: int) -> None:
    assert Settings.load().worker_max_memory is None
    monkeypatch.setenv("BRIMFUL_WORKER_MAX_MEMORY", text)
    assert Settings.load().worker_max_memory == size


@pytest.mark.parametrize("text", ["much", "2 bananas", "-1GB"])
def test_a_size_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("BRIMFUL_WORKER_MAX_MEMORY", text)
    with pytest.raises(SettingError, match="BRIMFUL_WORKER_MAX_MEMORY: could not"):
        Settings.load()
