"""A run's submitter as a process that a test can kill: ``python -m support.submitter URL COUNT OUT PACK``.

It appends ``[line, prompt, choice, text]`` to OUT, a JSON line for each rollout. Started again, it resumes.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from brimful.addresses import FleetAddress
from brimful.dispatch.driver import Driver
from brimful.dispatch.reconcile import Reconciler
from brimful.packing.request_size import line_profile
from brimful.packing.units import Delivered, Failed, Unit, parse_pack
from brimful.profile import get_profile
from brimful.request import Request

N = 2


def request_of(line: int) -> Request:
    profile = line_profile(get_profile("acs"))
    return Request.parse({"prompt": f"p{line}\u2028\ud83d", "max_tokens": 8, "n": N}, profile)


def completed_rollouts(out: Path) -> set[tuple[int, ...]]:
    """The rollouts that OUT holds; an incomplete last line is cut off."""
    whole = out.read_bytes().rpartition(b"\n")[0] if out.exists() else b""
    out.write_bytes(whole + b"\n" if whole else b"")
    return {tuple(json.loads(row)[:3]) for row in whole.splitlines()}


async def main(url: str, count: int, out: Path, pack: str) -> None:
    done = completed_rollouts(out)
    profile = get_profile("acs").model_copy(update={"starts": None, "slots": 4})
    Reconciler.sweep_s = 2.0
    driver = Driver(FleetAddress(url), "killed", profile, pack=parse_pack(pack))
    recovered = await driver.recover()
    with open(out, "ab") as file:  # noqa: ASYNC230

        def write(items: list[Delivered | Failed]) -> None:
            for item in items:
                assert isinstance(item, Delivered)
                for rollout in item.rollouts:
                    place = (item.line, rollout.prompt_index, rollout.choice_index)
                    if place not in done:
                        done.add(place)
                        file.write(json.dumps([*place, rollout.text]).encode() + b"\n")
            file.flush()

        write(list(recovered.delivered))

        def units() -> Iterator[Unit]:
            for line in range(1, count + 1):
                wanted = tuple(
                    (0, choice)
                    for choice in range(N)
                    if (line, 0, choice) not in done and (line, 0, choice) not in recovered.outstanding
                )
                if wanted:
                    yield Unit(line, str(line), request_of(line), wanted)

        async for batch in driver.deliveries(units(), total=count):
            write(batch)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]))
