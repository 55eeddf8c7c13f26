"""A run with a fake driver: resuming, parameters, refusals, interrupts."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest

from brimful.errors import FleetError, UsageError
from brimful.outcome import Cause, Failure, Outcome, Rollout
from brimful.packing.units import Delivered, DriveStatus, Recovered, Unit
from brimful.run.display.display import Display
from brimful.run.prepare import prepare
from brimful.run.session import Session
from support.fake_driver import FakeDriver
from support.runs import PROFILE, identities, options, prompts, records, run, write_lines

NO_MODEL = Failure(Cause.BAD_REQUEST, "HTTP 404: The model 'nosuch' does not exist", 404, permanent=True)


@pytest.mark.parametrize("retry_errors", [False, True])
def test_parameters_may_change_after_a_try_in_which_all_failed(tmp_path: Path, retry_errors: bool) -> None:
    out, errors = tmp_path / "out.jsonl", tmp_path / "out.jsonl.errors.jsonl"
    source = write_lines(tmp_path / "in.jsonl", [{"prompt": f"{line}"} for line in range(3)] + ["{"])
    wrong = {"defaults": {"max_tokens": 8, "model": "nosuch"}}
    summary = run(options(source, out=out, read=wrong), FakeDriver(lambda *_: NO_MODEL))
    assert summary is not None
    assert (summary.failed, summary.rollouts, len(records(errors))) == (4, 0, 4)
    assert "or the command's options" in dict(summary.rows())["to do"]
    right = {"defaults": {"max_tokens": 8, "model": "llama-8b"}}
    driver = FakeDriver()
    summary = run(options(source, out=out, read=right, retry_errors=retry_errors), driver)
    assert summary is not None
    assert [unit.request.fields["model"] for unit in driver.asked] == ["llama-8b"] * 3
    assert (summary.succeeded, summary.failed) == (3, 1)
    assert [record["cause"] for record in records(errors)] == ["bad_input"]
    with pytest.raises(UsageError, match="other parameters"):
        run(options(source, out=out, read=wrong))


def test_attempts_of_split_requests_count(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [{"prompt": "a"}, {"prompt": "b"}])
    driver = FakeDriver()
    driver.status = DriveStatus(attempts=3, retries={"bad_request": 3}, packed=3, split=3)
    summary = run(options(source, out=tmp_path / "out.jsonl"), driver)
    assert summary is not None
    assert (summary.attempts, summary.starts, summary.retries, summary.parted) == (5, 5, {"bad_request": 3}, 3)
    assert dict(summary.rows())["API calls"] == (
        "5, rate-limited 0, 3 failed (bad_request 3), 3 with several prompts, "
        "3 of those failed and were split into smaller ones"
    )


async def test_an_interrupt_after_the_last_request_counts_as_done(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [{"prompt": f"{line}"} for line in range(8)])
    prepared = prepare(options(source, out=tmp_path / "out.jsonl"), PROFILE)
    session: Session

    def answer(unit: Unit, *_: int) -> str:
        if unit.line == 8:
            asyncio.get_running_loop().call_soon(session.interrupt)
        return "ok"

    session = Session(prepared, Display(table=False))
    summary = await session.run(FakeDriver(answer))
    prepared.close()
    assert session.interrupts == 1
    assert (summary.exit_code, summary.ended, summary.left) == (0, "done", 0)


def test_each_rollout_becomes_one_record(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    driver = FakeDriver()
    summary = run(options(prompts(tmp_path, 10, n=2), out=out), driver)
    assert summary is not None
    assert sorted(identities(out)) == sorted((f"p{line}", 0, choice) for line in range(10) for choice in range(2))
    assert (summary.requests, summary.succeeded, summary.rollouts, summary.failed) == (10, 10, 20, 0)
    assert summary.exit_code == 0
    assert driver.total == 10
    assert summary.tokens == 80
    record = records(out)[0]
    assert record.keys() >= {"id", "line", "prompt_index", "choice_index", "text", "finish_reason", "model", "attempts"}


def test_eight_equal_lines_are_eight_requests(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    run(options(write_lines(tmp_path / "in.txt", ["The sky is"] * 8), out=out))
    assert [record["id"] for record in records(out)] == [str(line) for line in range(1, 9)]


@pytest.mark.parametrize("n", [1, 4])
def test_a_killed_run_resumes_exactly(tmp_path: Path, n: int) -> None:
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, 40, n=n)
    asked = options(source, out=out)
    for tries in range(3):
        assert run(asked, FakeDriver(die_after=5)) is None
        with out.open("ab") as file:  # and the last write is torn
            file.write(b'{"id": "p39", "line": 40, "te' if tries else b'{"id"')
    before = len(records_whole(out))
    driver = FakeDriver()
    summary = run(asked, driver)
    assert summary is not None
    assert summary.resumed == before
    assert len(driver.asked) < 40
    assert sorted(identities(out)) == sorted((f"p{line}", 0, choice) for line in range(40) for choice in range(n))
    again = FakeDriver()
    summary = run(asked, again)
    assert summary is not None
    assert again.asked == []
    assert (summary.rollouts, summary.resumed, summary.exit_code) == (40 * n, 40 * n, 0)


def records_whole(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\n")[:-1]


def test_only_the_missing_rollouts_of_a_line_are_requested(tmp_path: Path) -> None:
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, 1, n=4)
    run(options(source, out=out))
    lines = records_whole(out)
    out.write_bytes(lines[0] + b"\n" + lines[2] + b"\n")
    driver = FakeDriver()
    run(options(source, out=out), driver)
    assert driver.asked[0].wanted == ((0, 1), (0, 3))
    assert sorted(identities(out)) == [("p0", 0, choice) for choice in range(4)]


def test_recovered_rollouts_are_written_and_outstanding_ones_not_requested_again(tmp_path: Path) -> None:
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, 4, n=2)

    def delivered(line: int, choice: int) -> Delivered:
        rollout = Rollout(0, choice, "kept", "stop")
        return Delivered(line, f"p{line - 1}", [rollout], "llama-8b", None, Outcome(f"o{line}{choice}"), 1)

    driver = FakeDriver(
        recovered=Recovered([delivered(1, 0), delivered(1, 1), delivered(2, 0)], frozenset({(2, 0, 1), (3, 0, 1)})),
        finish_outstanding=[delivered(2, 1), delivered(3, 1)],
    )
    summary = run(options(source, out=out), driver)
    assert [(unit.line, unit.wanted) for unit in driver.asked] == [(3, ((0, 0),)), (4, None)]
    assert sorted(identities(out)) == sorted((f"p{line}", 0, choice) for line in range(4) for choice in range(2))
    assert summary is not None
    assert (summary.resumed, summary.succeeded) == (3, 4)
    assert (summary.starts, summary.attempts) == (2, 2)  # those that this try asked
    assert run(options(source, out=out), FakeDriver()).succeeded == 4  # type: ignore[union-attr]


def test_resuming_with_other_parameters_is_refused(tmp_path: Path) -> None:
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, 4)
    run(options(source, out=out))
    with pytest.raises(UsageError, match=r"max_tokens was 8 and is 16; n was not set and is 2"):
        run(options(source, out=out, read={"defaults": {"max_tokens": 16, "n": 2}}))
    old = out.read_bytes()
    summary = run(options(source, out=out, read={"defaults": {"max_tokens": 16}}, fresh=True))
    assert summary is not None
    assert (summary.rollouts, summary.resumed) == (4, 0)
    (kept,) = tmp_path.glob("out.jsonl.before-*[0-9]")
    assert kept.read_bytes() == old


def test_a_refused_key_ends_the_run_resumable(tmp_path: Path) -> None:
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, 30)
    refused = Failure(Cause.KEY_REFUSED, "401: bad key", 401, permanent=True)
    summary = run(options(source, out=out), FakeDriver(lambda unit, *_: refused if unit.line > 8 else "ok"))
    assert summary is not None
    assert (summary.exit_code, summary.ended, summary.failed, summary.left) == (5, "key_refused", 0, 22)
    assert run(options(source, out=out)).exit_code == 0  # type: ignore[union-attr]
    assert len(records(out)) == 30


def test_a_used_up_budget_of_the_key_ends_the_run_resumable(tmp_path: Path) -> None:
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, 30)
    spent = Failure(Cause.BUDGET, "402: no tokens left", 402)
    summary = run(options(source, out=out), FakeDriver(lambda unit, *_: spent if unit.line > 8 else "ok"))
    assert summary is not None
    assert (summary.exit_code, summary.failed) == (4, 0)
    assert run(options(source, out=out)).exit_code == 0  # type: ignore[union-attr]


def test_what_was_sampled_while_a_refused_run_stopped_is_told(tmp_path: Path) -> None:
    """The first lines name a wrong model, and requests of another one were on the wire."""
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, 40)
    refused = Failure(Cause.BAD_REQUEST, "404: no such model", 404, permanent=True)
    driver: FakeDriver
    stops = []

    def answer(unit: Unit, *_: int) -> str | Failure:
        if unit.line == 24:
            stops.append(asyncio.ensure_future(driver.stop(drain=True)))
            driver.status.stopping, driver.refused = "refused", refused
        return refused if unit.line <= 20 else "ok"

    driver = FakeDriver(answer)
    with pytest.raises(FleetError, match=r"refused the first requests .* no such model.* recorded as failed"):
        run(options(source, out=out), driver)
    assert 4 <= len(records(out)) < 20
    again = run(options(source, out=out))
    assert again is not None
    assert (again.exit_code, again.failed, again.left, len(records(out))) == (3, 20, 0, 20)


async def test_an_interrupt_drains(tmp_path: Path) -> None:
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, 30)
    prepared = prepare(options(source, out=out), PROFILE)
    session: Session

    def answer(unit: Unit, *_: int) -> str:
        if unit.line == 8:
            asyncio.get_running_loop().call_soon(session.interrupt)
        return "ok"

    driver = FakeDriver(answer)
    session = Session(prepared, Display(table=False))
    summary = await session.run(driver)
    prepared.close()
    assert (summary.exit_code, summary.ended) == (130, "interrupted")
    assert 8 <= summary.rollouts < 30
    assert summary.left == 30 - summary.rollouts


def test_the_summary_equals_a_recount(tmp_path: Path) -> None:
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, 40, n=3)
    fault = Failure(Cause.SERVER_ERROR, "500", 500)

    def answer(unit: Unit, prompt: int, choice: int) -> Failure | tuple[str, str]:
        if unit.line % 9 == 0:
            return fault
        return ("", "length") if unit.line % 5 == 0 else ("x", "content_filter" if choice else "stop")

    run(options(source, out=out), FakeDriver(answer, die_after=20))
    summary = run(options(source, out=out), FakeDriver(answer))
    assert summary is not None
    there, failed = records(out), records(tmp_path / "out.jsonl.errors.jsonl")
    assert summary.rollouts == len(there) == len(set(identities(out)))
    assert summary.succeeded == len({record["line"] for record in there})
    assert summary.failed == len(failed) == sum(summary.failed_by_cause.values())
    assert summary.truncated == sum(record["finish_reason"] == "length" for record in there)
    assert summary.filtered == sum(record["finish_reason"] == "content_filter" for record in there)
    assert summary.empty == sum(not record["text"].strip() for record in there)
    assert summary.tokens == sum(record["usage"]["total_tokens"] for record in there)
    assert summary.requests == summary.succeeded + summary.failed
    json.dumps(summary.as_json())


def test_input_and_parameters_may_change_before_anything_was_sampled(tmp_path: Path) -> None:
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, 4)
    assert run(options(source, out=out), FakeDriver(die_after=1, batch=9, ahead=2)) is None
    out.unlink()
    source.write_text(source.read_text().replace("Say", "Sing"))
    assert run(options(source, out=out), FakeDriver(die_after=1, batch=9, ahead=2)) is None
    out.unlink()
    summary = run(options(source, out=out, read={"defaults": {"max_tokens": 9}}))
    assert summary is not None
    assert summary.rollouts == 4


def test_a_resumed_run_may_raise_its_limit(tmp_path: Path) -> None:
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, 20)
    assert run(options(source, out=out, read={"limit": 5, "defaults": {"max_tokens": 8}})).rollouts == 5  # type: ignore[union-attr]
    prepared = prepare(options(source, out=out, read={"limit": 5, "defaults": {"max_tokens": 8}}), PROFILE)
    assert prepared.complete
    prepared.close()
    assert run(options(source, out=out)).rollouts == 20  # type: ignore[union-attr]


@pytest.mark.parametrize("seed", range(8))
def test_any_sequence_of_deaths_failures_and_retries_ends_exactly(tmp_path: Path, seed: int) -> None:
    """Lines split over deliveries in any order, transient failures, deaths, incomplete lines."""
    dice = random.Random(seed)
    out = tmp_path / "out.jsonl"
    lines = [{"id": f"p{line}", "prompt": ["a", "b"], "n": dice.randint(1, 3)} for line in range(25)]
    source = write_lines(tmp_path / "in.jsonl", lines)
    wanted = sorted(
        (line["id"], prompt, choice) for line in lines for prompt in range(2) for choice in range(int(str(line["n"])))
    )

    def answer(unit: Unit, prompt: int, choice: int) -> str | Failure:
        return Failure(Cause.SERVER_ERROR, "500", 500) if dice.random() < 0.05 else "ok"

    for tries in range(12):
        driver = FakeDriver(
            answer, batch=dice.randint(1, 5), ahead=dice.randint(1, 9), die_after=dice.randint(1, 60), split=dice
        )
        run(options(source, out=out, retry_errors=tries % 3 == 2), driver)
        assert len(_identities_whole(out)) == len(set(_identities_whole(out)))
        with out.open("ab") as file:
            file.write(b'{"id": "p1", "line"'[: dice.randint(0, 19)])
    run(options(source, out=out), FakeDriver(split=dice))
    summary = run(options(source, out=out, retry_errors=True), FakeDriver(split=dice))
    assert summary is not None
    assert (summary.exit_code, summary.failed, summary.succeeded) == (0, 0, 25)
    assert sorted(identities(out)) == wanted
    assert summary.tokens == sum(record["usage"]["total_tokens"] for record in records(out))


def _identities_whole(path: Path) -> list[tuple[str, int, int]]:
    found = [json.loads(line) for line in records_whole(path)] if path.exists() else []
    return [(record["id"], record["prompt_index"], record["choice_index"]) for record in found]


def test_a_line_whose_id_is_taken_fails_and_the_others_are_sampled(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    lines = [{"id": "a", "prompt": "x"}, {"id": "b", "prompt": "x"}, {"id": "a", "prompt": "y"}]
    source = write_lines(tmp_path / "in.jsonl", lines)
    with pytest.raises(UsageError, match=r"in.jsonl:3: the id 'a' is already used by line 1"):
        run(options(source, out=out, strict=True))
    for _ in range(2):  # a second try changes nothing
        summary = run(options(source, out=out))
        assert summary is not None
        assert (summary.succeeded, summary.failed, summary.exit_code) == (2, 1, 3)
        assert sorted(identities(out)) == [("a", 0, 0), ("b", 0, 0)]
        (record,) = records(tmp_path / "out.jsonl.errors.jsonl")
        assert (record["id"], record["line"], record["cause"]) == ("a", 3, "bad_input")
        assert "already used by line 1" in record["message"]
    write_lines(source, [*lines[:2], {"id": "c", "prompt": "y"}])
    summary = run(options(source, out=out))
    assert summary is not None
    assert (summary.succeeded, summary.failed, summary.exit_code) == (3, 0, 0)
