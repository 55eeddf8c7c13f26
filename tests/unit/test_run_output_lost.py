"""Output files that are removed, replaced or cut short under a run, and two runs on one file through links."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from brimful.errors import ExitCode, FleetError, UsageError
from brimful.outcome import Cause, Failure
from brimful.packing.units import Delivered, Failed, Unit
from brimful.run.output.paths import Order, OutputFormat
from brimful.run.prepare import prepare
from support.fake_driver import FakeDriver
from support.runs import PROFILE, identities, options, prompts, records, run


def _edit(out: Path) -> None:
    """As ``sed -i``: a changed copy takes the file's name."""
    copy = out.with_name("sedXYZ")
    copy.write_bytes(b"".join(out.read_bytes().splitlines(keepends=True)[1:]))
    copy.replace(out)


def _cut(out: Path) -> None:
    out.write_bytes(b"")


def _move(out: Path) -> None:
    out.rename(out.with_name("elsewhere"))


WAYS = {"was removed": Path.unlink, "was replaced": _edit, "was cut short": _cut, "was moved": _move}
COUNT = 200


def _driver(at: int, deed: Callable[[], None], answer: Callable[[Unit], str | Failure] | None = None) -> FakeDriver:
    """Does the deed when it is asked for line ``at``."""

    def answering(unit: Unit, prompt: int, choice: int) -> str | Failure:
        if unit.line == at and not done:
            done.append(True)
            deed()
        return answer(unit) if answer else f"text {unit.line}"

    done: list[bool] = []
    return FakeDriver(answering)


@pytest.mark.parametrize("what", WAYS)
def test_a_run_whose_output_is_lost_stops_and_the_next_one_has_every_rollout_once(tmp_path: Path, what: str) -> None:
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, COUNT)
    driver = _driver(60, lambda: WAYS[what](out))
    with pytest.raises(FleetError, match=rf"out\.jsonl {what}.* kept in .*out\.jsonl\.kept") as caught:
        run(options(source, out=out), driver)
    assert caught.value.exit_code is ExitCode.INTERNAL
    assert len(driver.asked) < COUNT
    kept = out.with_name("out.jsonl.kept")
    lost = 0 if what != "was cut short" else 60
    assert len(driver.asked) - lost <= len(identities(kept)) <= len(driver.asked)

    second = FakeDriver()
    summary = run(options(source, out=out), second)
    assert summary is not None
    assert summary.exit_code == 0
    assert sorted(identities(out)) == sorted((f"p{place}", 0, 0) for place in range(COUNT))
    assert summary.rollouts == COUNT
    assert not kept.exists()
    if what != "was cut short":
        assert len(second.asked) == COUNT - len(driver.asked)


@pytest.mark.parametrize("what", WAYS)
def test_what_earlier_tries_wrote_is_missed_before_this_one_writes(tmp_path: Path, what: str) -> None:
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, COUNT)
    run(options(source, out=out, read={"limit": 100}))
    with pytest.raises(FleetError, match=rf"out\.jsonl {what}"):
        run(options(source, out=out), _driver(101, lambda: WAYS[what](out)))
    summary = run(options(source, out=out))
    assert summary is not None
    assert sorted(identities(out)) == sorted((f"p{place}", 0, 0) for place in range(COUNT))


@pytest.mark.parametrize("what", WAYS)
def test_failures_of_earlier_tries_are_missed_before_this_one_has_any(tmp_path: Path, what: str) -> None:
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, COUNT)
    errors = tmp_path / "out.jsonl.errors.jsonl"

    def answer(unit: Unit) -> str | Failure:
        return Failure(Cause.BAD_REQUEST, "no", permanent=True) if 60 < unit.line < 80 else "text"

    run(options(source, out=out, read={"limit": 100}), FakeDriver(lambda unit, *_: answer(unit)))
    with pytest.raises(FleetError, match=rf"errors\.jsonl {what}"):
        run(options(source, out=out), _driver(101, lambda: WAYS[what](errors), answer))
    summary = run(options(source, out=out), FakeDriver(lambda unit, *_: answer(unit)))
    assert summary is not None
    assert sorted(record["line"] for record in records(errors)) == list(range(61, 80))


class _LastDeed(FakeDriver):
    """Does the deed when all is written."""

    def __init__(self, deed: Callable[[], None]) -> None:
        super().__init__()
        self._deed = deed

    async def deliveries(
        self, units: AsyncIterator[Unit], *, total: int | None
    ) -> AsyncIterator[list[Delivered | Failed]]:
        async for batch in super().deliveries(units, total=total):
            yield batch
        self._deed()


def test_the_loss_is_noticed_after_the_last_record_too(tmp_path: Path) -> None:
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, COUNT)
    with pytest.raises(FleetError, match="was removed"):
        run(options(source, out=out), _LastDeed(out.unlink))
    second = FakeDriver()
    assert run(options(source, out=out), second) is not None
    assert len(identities(out)) == COUNT
    assert not second.asked


def test_an_output_in_another_format_is_not_made_of_a_lost_rollouts_file(tmp_path: Path) -> None:
    out, source = tmp_path / "out.parquet", prompts(tmp_path, COUNT)
    with pytest.raises(FleetError, match=r"out\.parquet\.rollouts\.jsonl was removed"):
        run(options(source, out=out), _driver(60, lambda: out.with_name("out.parquet.rollouts.jsonl").unlink()))
    assert not out.exists()
    summary = run(options(source, out=out))
    assert summary is not None
    assert out.exists()
    assert summary.rollouts == COUNT


def test_a_lost_errors_file_is_kept_and_completed_too(tmp_path: Path) -> None:
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, COUNT)
    errors = tmp_path / "out.jsonl.errors.jsonl"

    def answer(unit: Unit) -> str | Failure:
        return Failure(Cause.BAD_REQUEST, "no", permanent=True) if unit.line % 2 else "text"

    with pytest.raises(FleetError, match=r"errors\.jsonl was removed"):
        run(options(source, out=out), _driver(60, errors.unlink, answer))
    summary = run(options(source, out=out), FakeDriver(lambda unit, *_: answer(unit)))
    assert summary is not None
    assert summary.failed == COUNT // 2
    assert sorted(record["line"] for record in records(errors)) == list(range(1, COUNT + 1, 2))


def test_what_cannot_be_kept_ends_the_run_with_both_reasons(tmp_path: Path) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    source = prompts(tmp_path, COUNT)
    with pytest.raises(FleetError, match=r"was removed .*cannot be kept in .*\.kept: No such file or directory"):
        run(options(source, out=folder / "out.jsonl"), _driver(60, lambda: shutil.rmtree(folder)))


def test_fresh_puts_what_was_kept_aside(tmp_path: Path) -> None:
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, COUNT)
    with pytest.raises(FleetError):
        run(options(source, out=out), _driver(60, out.unlink))
    summary = run(options(source, out=out, fresh=True))
    assert summary is not None
    assert (summary.resumed, summary.rollouts) == (0, COUNT)
    assert len(list(tmp_path.glob("out.jsonl.before-*.kept"))) == 1


def test_what_was_kept_belongs_to_its_parameters(tmp_path: Path) -> None:
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, COUNT)
    with pytest.raises(FleetError):
        run(options(source, out=out), _driver(60, out.unlink))
    with pytest.raises(UsageError, match="other parameters"):
        run(options(source, out=out, read={"defaults": {"max_tokens": 9}}))


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("link", ["symbolic", "dangling", "hard"])
def test_two_runs_do_not_write_one_file_through_a_link(tmp_path: Path, link: str, fresh: bool) -> None:
    out, other, source = tmp_path / "out.jsonl", tmp_path / "link.jsonl", prompts(tmp_path)
    if link != "dangling":
        run(options(source, out=out, read={"limit": 3}))
    other.hardlink_to(out) if link == "hard" else other.symlink_to(out)
    for first, second in ((out, other), (other, out)):
        running = prepare(options(source, out=first), PROFILE)
        try:
            with pytest.raises(UsageError, match="another run is writing"):
                prepare(options(source, out=second, fresh=fresh), PROFILE)
        finally:
            running.close()
    summary = run(options(source, out=other))
    assert summary is not None
    assert len(identities(out)) == len(identities(other)) == 10
    assert os.path.samefile(out, other)
    assert not (tmp_path / "out.jsonl.run.lines").exists() or link != "dangling"


def test_a_link_made_while_a_run_writes_is_the_same_file(tmp_path: Path) -> None:
    out, other, source = tmp_path / "out.jsonl", tmp_path / "link.jsonl", prompts(tmp_path, COUNT)
    seen: list[str] = []

    def deed() -> None:
        other.hardlink_to(out)
        with pytest.raises(UsageError, match="another run is writing"):
            prepare(options(source, out=other), PROFILE)
        seen.append("refused")

    run(options(source, out=out), _driver(60, deed))
    assert seen == ["refused"]


@pytest.mark.parametrize("more", [{"order": Order.INPUT}, {"form": OutputFormat.OPENAI_BATCH}, {}])
def test_a_run_that_replaces_its_own_output_is_not_taken_for_somebody_else(tmp_path: Path, more: dict) -> None:
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, COUNT)
    for _ in range(2):
        summary = run(options(source, out=out, **more), FakeDriver(reverse=True))
        assert summary is not None
        assert summary.exit_code == 0
