"""Checked runs with a driver that samples while units come: tries, resuming, faults of the hook, budgets."""

from __future__ import annotations

import json
import textwrap
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from brimful.dispatch.acknowledge import Acknowledger
from brimful.dispatch.deliveries import Deliveries
from brimful.errors import FleetError, UsageError
from brimful.outcome import Cause, Failure
from brimful.packing.units import Delivered, Unit
from brimful.run.checks.options import CheckOptions, load_checks
from brimful.run.input.sweep.grid import make_sweep
from brimful.run.output.jsonl import RecordFile
from brimful.run.output.paths import Order, OutputFormat
from support.live_driver import LiveDriver
from support.runs import identities, options, prompts, records, run, write_lines

PERSON = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


def by_hook(tmp_path: Path, body: str, **more: Any) -> CheckOptions:
    path = tmp_path / "hooks_of_test.py"
    path.write_text("from brimful.hooks import Again\n" + textwrap.dedent(body))
    checks = load_checks(None, f"{path}:check", **more)
    assert checks is not None
    return checks


def by_schema(tmp_path: Path, schema: Any = PERSON, **more: Any) -> CheckOptions:
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    checks = load_checks(str(tmp_path / "schema.json"), None, **more)
    assert checks is not None
    return checks


class Sampler:
    """Counts the samples of each (line, choice); ``good(line, choice)``: the sample that is accepted, 0 = none."""

    def __init__(self, good: Any, bad: str = "no JSON") -> None:
        self.seen: Counter[tuple[int, int]] = Counter()
        self.seeds: dict[tuple[int, int], list[Any]] = {}
        self._good, self._bad = good, bad

    def __call__(self, unit: Unit, prompt: int, choice: int) -> str:
        place = (unit.line, choice)
        self.seen[place] += 1
        self.seeds.setdefault(place, []).append(unit.request.fields.get("seed"))
        return json.dumps({"age": self.seen[place]}) if self.seen[place] == self._good(*place) else self._bad


def test_a_rejected_choice_is_sampled_again_and_keeps_its_index(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    sampler = Sampler(lambda line, choice: 1 + (line + choice) % 3)
    summary = run(options(prompts(tmp_path, 6, n=3), out=out, checks=by_schema(tmp_path)), LiveDriver(sampler))
    assert summary is not None
    assert sorted(identities(out)) == sorted((f"p{line}", 0, choice) for line in range(6) for choice in range(3))
    for record in records(out):
        tries = 1 + (record["line"] + record["choice_index"]) % 3
        assert json.loads(record["text"]) == {"age": tries}
        assert record.get("tries", 1) == tries
    assert (summary.exit_code, summary.succeeded, summary.failed, summary.left) == (0, 6, 0, 0)
    wanted = {"accepted": 18, "rejected": 18, "rejected_by": {"schema": 18}, "asked_again": 18}
    assert summary.checks is not None
    assert {name: summary.checks[name] for name in wanted} == wanted
    assert "18 accepted, 18 rejected (schema 18), 18 asked for again" in dict(summary.rows())["checks"]


def test_what_is_never_accepted_fails_with_the_last_reason_and_the_other_choices_stay(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    sampler = Sampler(lambda line, choice: 0 if (line, choice) == (2, 1) else 1, bad='{"age": "old"}')
    asked = options(prompts(tmp_path, 3, n=2), out=out, checks=by_schema(tmp_path, tries=4))
    summary = run(asked, LiveDriver(sampler))
    assert summary is not None
    assert sampler.seen[2, 1] == 4
    assert len(records(out)) == 5
    assert (summary.exit_code, summary.succeeded, summary.failed, summary.left) == (3, 2, 1, 0)
    (failure,) = records(tmp_path / "out.jsonl.errors.jsonl")
    assert failure["cause"] == "rejected"
    assert (
        failure["message"] == "not accepted in 4 tries, the last by the schema: $.age: 'old' is not of type 'integer'"
    )
    assert (failure["id"], failure["wanted"], failure["of"], failure["tries"]) == ("p1", [[0, 1]], 2, 4)
    rejected = records(tmp_path / "out.jsonl.rejected.jsonl")
    assert [record["try"] for record in rejected] == [1, 2, 3, 4]
    assert all("text" not in record and record["usage"]["completion_tokens"] for record in rejected)

    again = LiveDriver(sampler)  # the same command: the failure is known
    summary = run(asked, again)
    assert again.asked == []
    retry = options(asked.read.sources[0].path, out=out, checks=by_schema(tmp_path, tries=4), retry_errors=True)
    sampler = Sampler(lambda line, choice: 2)
    again = LiveDriver(sampler)
    summary = run(retry, again)
    assert summary is not None
    assert sampler.seen == {(2, 1): 2}
    assert (summary.exit_code, summary.failed, len(records(out))) == (0, 0, 6)
    assert next(r for r in records(out) if r["line"] == 2 and r["choice_index"] == 1)["tries"] == 6


def test_each_try_has_a_seed_of_its_own(tmp_path: Path) -> None:
    sampler = Sampler(lambda line, choice: 3)
    source = write_lines(tmp_path / "in.jsonl", [{"prompt": "a", "seed": 7}, {"prompt": "b", "seed": 2**31 - 5}])
    run(options(source, out=tmp_path / "out.jsonl", checks=by_schema(tmp_path)), LiveDriver(sampler))
    assert sampler.seeds == {(1, 0): [7, 1_000_007, 2_000_007], (2, 0): [2**31 - 5, 999_995, 1_999_995]}


@pytest.mark.parametrize("kind", ["", "async "])
def test_a_hook_sees_line_and_completion_and_adds_columns(tmp_path: Path, kind: str) -> None:
    source = write_lines(tmp_path / "in.jsonl", [{"id": 7, "prompt": "2+2=", "answer": {"is": 4}}])
    body = f"""
    {kind}def check(line, completion):
        if completion.tries == 1:
            raise Again(f"no number in {{completion.text!r}}")
        return {{"score": 0.5, "seen": [line.id, line.number, line.prompt, completion.choice_index, completion.text,
                completion.finish_reason, line.request["max_tokens"], completion.choice["finish_reason"],
                line.columns.pop("answer").pop("is")]}}
    """
    out = tmp_path / "out.jsonl"
    checks = by_hook(tmp_path, body, keep_rejected=True)
    summary = run(options(source, out=out, checks=checks), LiveDriver(lambda *_: "four"))
    assert summary is not None
    (record,) = records(out)
    assert record["hook"] == {"score": 0.5, "seen": [7, 1, "2+2=", 0, "four", "stop", 8, "stop", 4]}
    assert record["input"] == {"answer": {"is": 4}}
    assert record["tries"] == 2
    (rejected,) = records(tmp_path / "out.jsonl.rejected.jsonl")
    assert (rejected["by"], rejected["reason"], rejected["text"]) == ("hook", "no number in 'four'", "four")


def test_the_schema_comes_first_and_gives_the_hook_its_value(tmp_path: Path) -> None:
    (tmp_path / "models_of_test.py").write_text("from pydantic import BaseModel\nclass P(BaseModel):\n    age: int\n")
    (tmp_path / "h.py").write_text("def check(line, completion):\n    return {'age': completion.value.age + 1}\n")
    checks = load_checks(f"{tmp_path / 'models_of_test.py'}:P", f"{tmp_path / 'h.py'}:check")
    out = tmp_path / "out.jsonl"
    sampler = Sampler(lambda line, choice: 2, bad='```json\n{"age": "x"}\n```')
    run(options(prompts(tmp_path, 1), out=out, checks=checks), LiveDriver(sampler))
    (record,) = records(out)
    assert record["hook"] == {"age": 3}
    (rejected,) = records(tmp_path / "out.jsonl.rejected.jsonl")
    assert rejected["reason"].startswith("$.age: Input should be a valid integer")


@pytest.mark.parametrize("n", [1, 3])
def test_a_killed_run_resumes_with_nothing_lost_and_nothing_accepted_twice(tmp_path: Path, n: int) -> None:
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, 30, n=n)
    asked = options(source, out=out, checks=by_schema(tmp_path))
    sampler = Sampler(lambda line, choice: 1 + (line * 7 + choice) % 3)
    stored: list[Delivered] = []
    tries = 0
    while run(asked, LiveDriver(sampler, stored=stored, die_after=9)) is None:
        tries += 1
    assert tries > 2
    assert sorted(identities(out)) == sorted((f"p{line}", 0, choice) for line in range(30) for choice in range(n))
    assert all(record.get("tries", 1) == json.loads(record["text"])["age"] for record in records(out))
    # Each sample was judged to the end: as many as its place needed, and none sampled twice.
    assert sampler.seen == {(line, choice): 1 + (line * 7 + choice) % 3 for line in range(1, 31) for choice in range(n)}
    rejected = records(tmp_path / "out.jsonl.rejected.jsonl")
    assert len({(r["line"], r["choice_index"], r["request_id"]) for r in rejected}) == len(rejected)
    assert len(rejected) == sum(sampler.seen.values()) - 30 * n


@pytest.mark.parametrize("die_after", [1, 2])
def test_a_choice_that_was_given_up_does_not_end_its_line_for_a_killed_run(tmp_path: Path, die_after: int) -> None:
    body = """
    def check(line, completion):
        if completion.choice_index == 0:
            raise ValueError("never")
        if completion.tries < 3:
            raise Again("once more")
    """
    out, stored = tmp_path / "out.jsonl", list[Delivered]()
    asked = options(prompts(tmp_path, 1, n=2), out=out, checks=by_hook(tmp_path, body))
    assert run(asked, LiveDriver(stored=stored, die_after=die_after)) is None
    if die_after > 1:
        stored.clear()  # all of it was acknowledged
    driver = LiveDriver(stored=stored)
    summary = run(asked, driver)
    assert summary is not None
    assert {pair for unit in driver.asked for pair in unit.wanted or ((0, 0), (0, 1))} == {(0, 1)}
    assert [(record["choice_index"], record["tries"]) for record in records(out)] == [(1, 3)]
    (failure,) = records(tmp_path / "out.jsonl.errors.jsonl")
    assert (failure["cause"], failure["wanted"], summary.failed, summary.left) == ("hook_error", [[0, 0]], 1, 0)
    assert run(asked, LiveDriver()) is not None


def test_a_hook_that_raises_is_a_record_and_the_run_goes_on(tmp_path: Path) -> None:
    body = """
    def check(line, completion):
        return {"x": 1 / (line.number % 2)}
    """
    out = tmp_path / "out.jsonl"
    summary = run(options(prompts(tmp_path, 60), out=out, checks=by_hook(tmp_path, body)), LiveDriver())
    assert summary is not None
    assert (summary.exit_code, summary.succeeded, summary.failed) == (3, 30, 30)
    failures = records(tmp_path / "out.jsonl.errors.jsonl")
    assert {record["cause"] for record in failures} == {"hook_error"}
    assert {record["message"] for record in failures} == {
        "ZeroDivisionError: division by zero (hooks_of_test.py:4, in check)"
    }
    assert {(record["line"], record["text"]) for record in failures} == {
        (line, f"p{line - 1}/0/0") for line in range(2, 61, 2)
    }


def test_a_hook_that_fails_on_everything_stops_the_run_and_what_was_sampled_is_judged_by_the_next(
    tmp_path: Path,
) -> None:
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, 1500)
    stored: list[Delivered] = []
    sampler = Sampler(lambda line, choice: 1)
    checks = by_hook(tmp_path, "def check(line, completion):\n    return {'x': line.columns['nosuch']}\n")
    driver = LiveDriver(sampler, stored=stored)
    with pytest.raises(FleetError, match=r"on 20 rollouts one after the other: KeyError: 'nosuch' \(hooks_of_test"):
        run(options(source, out=out, checks=checks), driver)
    assert 20 <= len(driver.asked) < 1500
    assert not out.exists()
    assert not (tmp_path / "out.jsonl.errors.jsonl").exists()
    assert len(stored) == sum(sampler.seen.values())
    checks = by_hook(tmp_path, "def check(line, completion):\n    return {'x': completion.value}\n")
    summary = run(options(source, out=out, checks=checks), LiveDriver(sampler, stored=stored))
    assert summary is not None
    assert (summary.succeeded, summary.failed) == (1500, 0)
    assert set(sampler.seen.values()) == {1}  # nothing was sampled twice


@pytest.mark.parametrize("kind", ["", "async "])
def test_a_hook_that_takes_too_long_is_a_failure_and_stops_nothing(tmp_path: Path, kind: str) -> None:
    body = f"""
    import asyncio, threading
    forever = threading.Event()
    {kind}def check(line, completion):
        if line.number == 2:
            {"await asyncio.Event().wait()" if kind else "forever.wait()"}
    """
    out = tmp_path / "out.jsonl"
    checks = by_hook(tmp_path, body, timeout_s=0.3, workers=1)
    summary = run(options(prompts(tmp_path, 4), out=out, checks=checks), LiveDriver())
    assert summary is not None
    (failure,) = records(tmp_path / "out.jsonl.errors.jsonl")
    assert (failure["line"], failure["cause"]) == (2, "hook_error")
    assert failure["message"] == "took longer than 0.3 s (--hook-timeout)"
    assert len(records(out)) == 3
    import sys

    sys.modules["hooks_of_test"].__dict__["forever"].set()


def test_hooks_run_beside_the_loop_and_a_few_at_once(tmp_path: Path) -> None:
    body = """
    import threading, time
    lock, active, most, threads = threading.Lock(), [0], [0], set()
    def check(line, completion):
        with lock:
            active[0] += 1
            most[0] = max(most[0], active[0])
            threads.add(threading.current_thread().name)
        time.sleep(0.002)
        with lock:
            active[0] -= 1
    """
    checks = by_hook(tmp_path, body, workers=3)
    run(options(prompts(tmp_path, 40), out=tmp_path / "out.jsonl", checks=checks), LiveDriver(at_once=16))
    import sys

    module = sys.modules["hooks_of_test"].__dict__
    assert module["most"] == [3]
    assert threading.main_thread().name not in module["threads"]


def test_budgets_count_rejected_rollouts_over_all_tries(tmp_path: Path) -> None:
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, 200)
    sampler = Sampler(lambda line, choice: 3)
    checks = by_schema(tmp_path)
    stored: list[Delivered] = []
    used = 0
    for budget in (300, 600):
        asked = options(source, out=out, checks=checks, budget_tokens=budget)
        summary = run(asked, LiveDriver(sampler, stored=stored))
        assert summary is not None
        assert summary.ended == "budget"
        assert summary.checks is not None
        before, used = used, summary.tokens + summary.checks["rejected_tokens"]
        assert used == 6 * sum(sampler.seen.values())  # 4 of the prompt, 2 of the text
        assert before < used <= budget
        assert used > budget - 60
        assert len(records(out)) > 0


def test_a_failure_of_the_provider_while_asking_again_keeps_the_tries(tmp_path: Path) -> None:
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, 1, seed=1)
    seeds: list[Any] = []

    def answer(unit: Unit, prompt: int, choice: int) -> Any:
        seeds.append(unit.request.fields["seed"])
        if len(seeds) == 2:
            return Failure(Cause.SERVER_ERROR, "HTTP 500")
        return '{"age": 1}' if len(seeds) == 3 else "?"

    checks = by_schema(tmp_path)
    summary = run(options(source, out=out, checks=checks), LiveDriver(answer))
    assert summary is not None
    assert summary.failed_by_cause == {"server_error": 1}
    summary = run(options(source, out=out, checks=checks, retry_errors=True), LiveDriver(answer))
    assert summary is not None
    assert (summary.failed, summary.succeeded) == (0, 1)
    assert records(out)[0]["tries"] == 2
    assert seeds == [1, 1_000_001, 1_000_001]


def test_another_schema_or_hook_is_refused_and_more_tries_are_not(tmp_path: Path) -> None:
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, 2)
    good = LiveDriver(Sampler(lambda line, choice: 1))
    run(options(source, out=out, checks=by_schema(tmp_path)), good)
    run(options(source, out=out, checks=by_schema(tmp_path, tries=9, keep_rejected=True)), good)
    with pytest.raises(UsageError, match=r"schema was \"schema.json sha256:\w+\" and is \"schema.json sha256:"):
        run(options(source, out=out, checks=by_schema(tmp_path, {"type": "string"})), good)
    with pytest.raises(UsageError, match=r"schema was .* and is not set"):
        run(options(source, out=out), good)


def test_a_stream_s_line_is_known_when_what_an_earlier_try_sampled_is_judged(tmp_path: Path) -> None:
    import os

    body = """
    def check(line, completion):
        if completion.tries < 2:
            raise Again("once more")
        return {"prompt": line.prompt}
    """
    out = tmp_path / "out.jsonl"
    lines = b"".join(
        json.dumps({"id": f"p{n}", "prompt": f"say {n}", "max_tokens": 4}).encode() + b"\n" for n in range(20)
    )
    stored: list[Delivered] = []
    tries = 0
    while True:
        tries += 1
        read, write = os.pipe()
        os.write(write, lines)
        os.close(write)
        asked = options(f"/dev/fd/{read}", out=out, checks=by_hook(tmp_path, body))
        assert not asked.read.repeatable
        summary = run(asked, LiveDriver(stored=stored, die_after=7))
        os.close(read)
        if summary is not None:
            break
    assert tries > 1
    assert sorted(identities(out)) == sorted((f"p{n}", 0, 0) for n in range(20))
    assert all(record["hook"] == {"prompt": f"say {record['line'] - 1}"} for record in records(out))


async def test_outcomes_stay_in_redis_until_they_are_judged() -> None:
    trimmed: list[str] = []
    durable = False

    class Ledger:
        async def forget(self, entry: str) -> None:
            trimmed.append(entry)

    async def sync() -> bool:
        return durable

    acknowledger = Acknowledger(Ledger(), Deliveries(), sync)  # type: ignore[arg-type]
    await acknowledger.written("5-0")
    await acknowledger.now()
    assert trimmed == []
    durable = True
    await acknowledger.now()
    assert trimmed == ["5-0"]


def test_standard_output_gets_what_is_accepted(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    sampler = Sampler(lambda line, choice: 0 if line == 3 else 2)
    summary = run(options(prompts(tmp_path, 4), out="-", checks=by_schema(tmp_path)), LiveDriver(sampler))
    assert summary is not None
    assert (summary.succeeded, summary.failed, summary.exit_code) == (3, 1, 3)
    printed, said = capfdbinary.readouterr()
    assert sorted(json.loads(line)["line"] for line in printed.splitlines()) == [1, 2, 4]
    assert b"line 3 (id p2): rejected: not accepted in 3 tries, the last by the schema: no JSON" in said
    with pytest.raises(UsageError, match="--keep-rejected needs a file"):
        run(options(prompts(tmp_path, 4), out="-", checks=by_schema(tmp_path, keep_rejected=True)), LiveDriver())


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv", "out.parquet"])
def test_other_outputs_have_the_columns_of_hooks(tmp_path: Path, name: str) -> None:
    import csv

    import pyarrow.parquet as pq

    body = """
    def check(line, completion):
        if completion.tries <= line.number % 2:
            raise Again("odd")
        return {"score": line.number / 2, "line": line.number}
    """
    out = tmp_path / name
    more = {"order": Order.INPUT} if name == "out.jsonl" else {}
    run(options(prompts(tmp_path, 6), out=out, checks=by_hook(tmp_path, body), **more), LiveDriver())
    if name == "out.jsonl":
        assert [(r["line"], r["hook"]["score"]) for r in records(out)] == [(n, n / 2) for n in range(1, 7)]
        return
    rows: list[dict[str, Any]] = pq.read_table(out).to_pylist() if name == "out.parquet" else []
    if name == "out.csv":
        with out.open(newline="") as file:
            rows = list(csv.DictReader(file))
    assert [(float(row["hook.score"]), int(row["hook.line"]), int(row["line"])) for row in rows] == [
        (n / 2, n, n) for n in range(1, 7)
    ]
    assert [row["tries"] in (2, "2") for row in rows] == [n % 2 == 1 for n in range(1, 7)]


def test_openai_batch_output_has_one_entry_a_choice(tmp_path: Path) -> None:
    body = """
    def check(line, completion):
        return {"choice": completion.choice_index} if completion.choice_index else None
    """
    out = tmp_path / "out.jsonl"
    checks = by_hook(tmp_path, body)
    run(options(prompts(tmp_path, 2, n=2), out=out, checks=checks, form=OutputFormat.OPENAI_BATCH), LiveDriver())
    assert [line["brimful"] for line in records(out)] == [{"hook": [None, {"choice": 1}]}] * 2


def test_an_output_that_cannot_be_written_ends_the_run_and_keeps_the_outcomes(tmp_path: Path) -> None:
    out, stored = tmp_path / "out.jsonl", list[Delivered]()
    asked = options(prompts(tmp_path, 30), out=out, checks=by_schema(tmp_path))
    sampler = Sampler(lambda line, choice: 1 + line % 2)
    writes = 0

    def write(self: RecordFile, records: list[dict[str, Any]], known: Any = RecordFile.write) -> None:
        nonlocal writes
        writes += bool(records)
        if writes == 12:
            raise FleetError("no space left")
        known(self, records)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecordFile, "write", write)
        with pytest.raises(FleetError, match="no space left"):
            run(asked, LiveDriver(sampler, stored=stored))
    assert stored
    assert run(asked, LiveDriver(sampler, stored=stored)) is not None
    assert sorted(record["line"] for record in records(out)) == list(range(1, 31))
    assert sampler.seen == {(line, 0): 1 + line % 2 for line in range(1, 31)}


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.rejected.jsonl"])
def test_a_file_that_is_removed_under_a_run_stops_it_and_is_made_whole_by_the_next(tmp_path: Path, name: str) -> None:
    out, stored = tmp_path / "out.jsonl", list[Delivered]()
    asked = options(prompts(tmp_path, 400), out=out, checks=by_schema(tmp_path))

    class Removing(Sampler):
        removed = False

        def __call__(self, unit: Unit, prompt: int, choice: int) -> str:
            if not self.removed and unit.line >= 40 and (tmp_path / name).exists():  # its first record may be late
                (tmp_path / name).unlink()
                self.removed = True
            return super().__call__(unit, prompt, choice)

    sampler = Removing(lambda line, choice: 1 + line % 3)
    with pytest.raises(FleetError, match=f"{name} was removed while the run was writing it"):
        run(asked, LiveDriver(sampler, stored=stored))
    summary = run(asked, LiveDriver(sampler, stored=stored))
    assert summary is not None
    assert sorted(record["line"] for record in records(out)) == list(range(1, 401))
    rejected = records(tmp_path / "out.jsonl.rejected.jsonl")
    assert len({(r["line"], r["request_id"]) for r in rejected}) == len(rejected)
    assert sampler.seen == {(line, 0): 1 + line % 3 for line in range(1, 401)}


def test_a_sweep_is_checked_by_combination_and_resumed(tmp_path: Path) -> None:
    sweep = make_sweep({"temperature": [0.0, 0.5, 1.0]}, {}, None)
    path, out = prompts(tmp_path, 4, n=2, answer="x"), tmp_path / "out.jsonl"
    body = """
        def check(line, completion):
            if completion.text == "no JSON":
                raise Again("no")
            return {"line": line.number, "warmth": line.request["temperature"], "answer": line.columns["answer"]}
    """
    asked = options(path, out=out, read={"sweep": sweep}, checks=by_hook(tmp_path, body, tries=3))
    sampler, stored = Sampler(lambda line, choice: 0 if line == 5 else 1 + (line + choice) % 2), []
    for deaths in (3, 4, 5):
        assert run(asked, LiveDriver(sampler, stored=stored, die_after=deaths)) is None
    summary = run(asked, LiveDriver(sampler, stored=stored))
    assert summary is not None
    assert (summary.succeeded, summary.failed, summary.left) == (11, 1, 0)
    failed = records(tmp_path / "out.jsonl.errors.jsonl")
    assert {(each["line"], each["sweep_index"], each["id"]) for each in failed} == {(2, 1, "p1#temperature=0.5")}
    for record in records(out):
        place = sweep.place(record["line"], record["sweep_index"])
        assert record.get("tries", 1) == 1 + (place + record["choice_index"]) % 2
        assert record["hook"] == {"line": record["line"], "warmth": record["sweep"]["temperature"], "answer": "x"}
    rejected = records(tmp_path / "out.jsonl.rejected.jsonl")
    assert {record["sweep_index"] for record in rejected} <= {0, 1, 2}
    again = {(record["line"], record["sweep_index"], record["choice_index"], record["try"]) for record in rejected}
    assert len(again) == len(rejected)  # each try once
    assert summary.checks is not None
    assert summary.checks["rejected"] == len(rejected)


def test_only_the_other_choices_are_asked_for_beside_one_that_a_killed_run_gave_up(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    gave_up = {"id": "p0", "line": 1, "prompt_index": 0, "choice_index": 1, "request_id": "r", "reason": "no JSON"}
    write_lines(tmp_path / "out.jsonl.rejected.jsonl", [{**gave_up, "try": 1, "by": "schema"}])
    driver = LiveDriver(Sampler(lambda line, choice: 1))
    summary = run(options(prompts(tmp_path, 1, n=3), out=out, checks=by_schema(tmp_path, tries=1)), driver)
    assert summary is not None
    assert [unit.wanted for unit in driver.asked] == [((0, 0), (0, 2))]
    (failure,) = records(tmp_path / "out.jsonl.errors.jsonl")
    assert (failure["wanted"], failure["message"]) == (
        [[0, 1]],
        "not accepted in 1 try, the last by the schema: no JSON",
    )


def test_a_choice_that_the_budget_does_not_reach_is_left_for_the_next_try(tmp_path: Path) -> None:
    body = """
    def check(line, completion):
        if completion.choice_index == 0:
            raise ValueError("never")
        if completion.tries == 1:
            raise Again("once more")
    """
    out, source, checks = tmp_path / "out.jsonl", prompts(tmp_path, 1, n=2), by_hook(tmp_path, body)
    summary = run(options(source, out=out, checks=checks, budget_tokens=230), LiveDriver(prompt_tokens=200))
    assert summary is not None
    assert (summary.ended, summary.left, summary.failed) == ("budget", 1, 0)
    driver = LiveDriver()
    summary = run(options(source, out=out, checks=checks), driver)
    assert summary is not None
    assert [unit.wanted for unit in driver.asked] == [((0, 1),)]
    assert (summary.ended, summary.left, summary.failed, summary.rollouts) == ("done", 0, 1, 1)


def test_an_empty_schema_or_hook_is_refused() -> None:
    with pytest.raises(UsageError, match="--schema : "):
        load_checks("", None)
    with pytest.raises(UsageError, match="--hook : must be module:name"):
        load_checks(None, "")
