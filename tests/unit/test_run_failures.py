"""What is told of failures, and what may be corrected after them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from brimful.dispatch.outcomes import Outcomes
from brimful.errors import UsageError
from brimful.outcome import Cause, Failure, Outcome
from brimful.packing.batcher import Planner
from brimful.packing.pack_size import Tuner
from brimful.packing.packing import Packed, parts_of
from brimful.packing.slot_model import Limits, Pace
from brimful.packing.units import DriveStatus, Unit
from brimful.request import Request
from brimful.run.display.display import Quiet
from brimful.run.output.done_index import Tally
from brimful.run.output.errors_file import ErrorsFile
from brimful.run.prepare import prepare
from brimful.run.session import Session
from support.fake_driver import FakeDriver
from support.runs import PROFILE, options, records, run, write_lines

NO_MODEL = Failure(Cause.BAD_REQUEST, "HTTP 404: The model 'nosuch' does not exist", 404, permanent=True)


def test_the_end_table_says_why(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    source = write_lines(tmp_path / "in.jsonl", [{"prompt": f"{line}"} for line in range(6)] + ["{", "{"])
    away = Failure(Cause.SERVER_ERROR, "503:\n away", 503)
    driver = FakeDriver(lambda unit, *_: NO_MODEL if unit.line < 4 else away if unit.line == 4 else "ok")
    summary = run(options(source, out=out), driver)
    assert summary is not None
    rows = summary.rows()
    place = [label for label, _ in rows].index("failed")
    assert [value.strip() for _, value in rows[place : place + 3]] == [
        "6: bad_request 3 – HTTP 404: The model 'nosuch' does not exist",
        "bad_input 2 – is not JSON by itself; each line must be a whole object: jq -c . FILE > FILE.jsonl",
        "server_error 1 – 503: away",
    ]
    assert summary.failed_passing == 1
    assert dict(rows)["to do"].startswith("correct the lines (out.jsonl.errors.jsonl names them), then")


def test_messages_are_kept_in_bounds(tmp_path: Path) -> None:
    errors = ErrorsFile(tmp_path / "errors.jsonl")
    with errors.path.open("w") as file:
        for line in range(1, 1001):
            text = "often" if line % 2 else f"once {line} " + "x" * 500
            file.write(f'{{"line": {line}, "cause": "timeout", "message": "{text}"}}\n')
    errors.load(Tally())
    assert errors.commonest() == {"timeout": "often"}
    assert len(errors.messages["timeout"]) <= 64
    assert max(map(len, errors.messages["timeout"])) <= 160
    assert errors.passing == 1000


@pytest.mark.parametrize("retry_errors", [False, True])
def test_where_all_failed_the_parameters_may_be_corrected(tmp_path: Path, retry_errors: bool) -> None:
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


def test_attempts_of_packs_that_were_parted_count(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [{"prompt": "a"}, {"prompt": "b"}])
    driver = FakeDriver()
    driver.status = DriveStatus(attempts=3, retries={"bad_request": 3}, packed=3, parted=3)
    summary = run(options(source, out=tmp_path / "out.jsonl"), driver)
    assert summary is not None
    assert (summary.attempts, summary.starts, summary.retries, summary.parted) == (5, 5, {"bad_request": 3}, 3)
    assert dict(summary.rows())["attempts"] == (
        "5 requests on the wire, 3 failed (bad_request 3), 3 carried several lines, "
        "3 of those failed and were asked anew in smaller ones"
    )


def test_a_refused_pack_counts_as_parted() -> None:
    profile, status = PROFILE, DriveStatus()
    tuner = Tuner(Limits(16, 600, 60.0), 120.0)
    planner = Planner(profile, "auto", tuner, Pace(Limits(16, 600, 60.0)))
    units = [Unit(line, str(line), Request.parse({"prompt": "a", "max_tokens": 8}, profile)) for line in (1, 2)]
    pairs = [pair for unit in units for pair in parts_of(unit, profile)]
    packed = Packed("r", pairs[0][0], tuple(part for _, part in pairs))
    failure = Failure(Cause.BAD_REQUEST, "400: no", 400, permanent=True)
    outcome = Outcome("r", failure=failure, attempts=1, retries={"bad_request": 1}, started_at=None)
    assert Outcomes(planner, tuner, status).records(packed, outcome, known_lines=True) == []
    assert (status.parted, status.packed, status.attempts, status.retries) == (1, 1, 1, {"bad_request": 1})


async def test_interrupted_after_the_last_one_is_done(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [{"prompt": f"{line}"} for line in range(8)])
    prepared = prepare(options(source, out=tmp_path / "out.jsonl"), PROFILE)
    session: Session

    def answer(unit: Unit, *_: int) -> str:
        if unit.line == 8:
            asyncio.get_running_loop().call_soon(session.interrupt)
        return "ok"

    session = Session(prepared, Quiet(table=False))
    summary = await session.run(FakeDriver(answer))
    prepared.close()
    assert session.interrupts == 1
    assert (summary.exit_code, summary.ended, summary.left) == (0, "done", 0)
