"""Output formats: OpenAI Batch files, outputs that are refused, and the input's order."""

from __future__ import annotations

from pathlib import Path

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion

from brimful.errors import UsageError
from brimful.names import Mode
from brimful.outcome import Cause, Failure
from brimful.run.output.paths import SUFFIXES, Order, OutputFormat
from brimful.run.prepare import prepare
from brimful.run.report.reading import read_run
from support.fake_driver import FakeDriver
from support.runs import PROFILE, options, records, run, write_lines


def test_openai_batch_files_fit_openai_s_types(tmp_path: Path) -> None:
    source = write_lines(
        tmp_path / "in.jsonl", [{"custom_id": f"c{line}", "body": {"prompt": "a"}} for line in range(6)]
    )
    out = tmp_path / "out.jsonl"
    fault = Failure(Cause.BAD_REQUEST, "400: no such model", 400, permanent=True)
    asked = options(source, out=out, form=OutputFormat.OPENAI_BATCH, read={"defaults": {"max_tokens": 8, "n": 2}})
    assert run(asked, FakeDriver(die_after=2, batch=2, ahead=2)) is None
    summary = run(asked, FakeDriver(lambda unit, *_: fault if unit.id == "c4" else f"\ud800{unit.id}"))
    assert summary is not None
    assert (summary.succeeded, summary.failed, summary.exit_code) == (5, 1, 3)
    lines = records(out)
    assert [line["custom_id"] for line in lines] == ["c0", "c1", "c2", "c3", "c5"]
    for line in lines:
        assert line.keys() == {"id", "custom_id", "response", "error"}
        assert (line["error"], line["response"]["status_code"]) == (None, 200)
        completion = Completion.model_validate(line["response"]["body"], strict=True)
        assert [choice.index for choice in completion.choices] == [0, 1]
        assert completion.usage is not None
        assert completion.usage.total_tokens == 8
    (error,) = records(tmp_path / "out.jsonl.errors.jsonl")
    assert (error["custom_id"], error["error"]["code"]) == ("c4", "bad_request")
    assert error["response"]["status_code"] == 400
    summary = run(options(source, out=out, form=OutputFormat.OPENAI_BATCH, retry_errors=True, read=vars_of(asked)))
    assert summary is not None
    assert len(records(out)) == 6
    assert not (tmp_path / "out.jsonl.errors.jsonl").exists()


def vars_of(asked: object) -> dict[str, object]:
    return {"defaults": asked.read.defaults}  # type: ignore[attr-defined]


def test_openai_batch_lines_of_a_chat_fit_openai_s_types(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.txt", ["hello"])
    out = tmp_path / "out.jsonl"
    run(options(source, out=out, form=OutputFormat.OPENAI_BATCH, read={"mode": Mode.CHAT}))
    (line,) = records(out)
    body = ChatCompletion.model_validate(line["response"]["body"], strict=True)
    assert body.choices[0].message.content == "1/0/0"


@pytest.mark.parametrize(
    ("name", "form"),
    [*((f"out{suffix}", OutputFormat.ROLLOUTS) for suffix in SUFFIXES), *(("out", form) for form in OutputFormat)],
)
def test_every_format_is_named_written_and_read_by_the_report(tmp_path: Path, name: str, form: OutputFormat) -> None:
    out = tmp_path / name
    fault = Failure(Cause.BAD_REQUEST, "400: no", 400, permanent=True)
    source = write_lines(tmp_path / "in.txt", ["a", "b"])
    run(options(source, out=out, form=form), FakeDriver(lambda unit, *_: fault if unit.id == "2" else "t"))
    assert out.stat().st_size
    figures = read_run(out).figures
    assert (figures.counts.rollouts, figures.failed_lines) == (1, 1)
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text("utf-8")
    assert form.value in page
    assert out.suffix in page


def test_outputs_that_cannot_be_are_refused(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.txt", ["a"])
    with pytest.raises(UsageError, match="is not a table"):
        run(options(source, out=tmp_path / "out.parquet", form=OutputFormat.OPENAI_BATCH))
    for name in ("out.csv", "out.TSV"):
        with pytest.raises(UsageError, match=rf"is not a table; .* not end in {name[3:].lower()}"):
            run(options(source, out=tmp_path / name, form=OutputFormat.OPENAI_BATCH))
    for suffix in (".xlsx", ".arrow", ".sqlite3", ".Yaml"):
        with pytest.raises(UsageError, match=rf"{suffix} files cannot be written; name a .jsonl, .csv, .tsv or .parqu"):
            run(options(source, out=tmp_path / f"out{suffix}"))
    with pytest.raises(UsageError, match="--order input needs a file"):
        run(options(source, out="-", order=Order.INPUT))
    with pytest.raises(UsageError, match="would overwrite the input"):
        run(options(source, out=source))
    with pytest.raises(UsageError, match="mkdir -p"):
        run(options(source, out=tmp_path / "nowhere" / "out.jsonl"))
    with pytest.raises(UsageError, match="compressed output"):
        run(options(source, out=tmp_path / "out.jsonl.gz"))
    out = tmp_path / "out.jsonl"
    run(options(source, out=out))
    with pytest.raises(UsageError, match='format was "rollouts" and is "openai-batch"'):
        run(options(source, out=out, form=OutputFormat.OPENAI_BATCH))


def test_somebody_else_s_output_is_refused_with_the_file_that_is_missing(tmp_path: Path) -> None:
    source, out = write_lines(tmp_path / "in.txt", ["hello"]), tmp_path / "out.csv"
    out.write_text("mine")
    with pytest.raises(
        UsageError, match=r"out\.csv exists, but the rollouts file .*out\.csv\.rollouts\.jsonl, does not"
    ):
        run(options(source, out=out))
    assert out.read_text() == "mine"


def test_openai_batch_files_repeat_what_stands_beside_the_request(tmp_path: Path) -> None:
    lines = [
        {"custom_id": 7, "body": {"prompt": "a", "n": 2}, "answer": "4"},
        {"custom_id": "x", "body": {"prompt": "b"}},
    ]
    source, out = write_lines(tmp_path / "in.jsonl", [*lines, {**lines[0], "custom_id": 8}]), tmp_path / "out.jsonl"
    fault = Failure(Cause.BAD_REQUEST, "400: no", 400, permanent=True)
    driver = FakeDriver(lambda unit, *_: fault if unit.id == "8" else "t")
    run(options(source, out=out, form=OutputFormat.OPENAI_BATCH), driver)
    first, second = records(out)
    assert (first["custom_id"], first["brimful"]) == (7, {"input": {"answer": "4"}})
    assert len(first["response"]["body"]["choices"]) == 2
    assert "brimful" not in second
    (error,) = records(tmp_path / "out.jsonl.errors.jsonl")
    assert (error["custom_id"], error["brimful"]) == (8, {"input": {"answer": "4"}})


def test_names_that_hold_json_lines_are_written(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.txt", ["a"])
    for name in ("out", "out.ndjson", "results-v2.1", "out.v2"):
        run(options(source, out=tmp_path / name))
        assert len(records(tmp_path / name)) == 1
    for suffix in ("", ".run.json", ".run.lines"):  # of an earlier release
        (tmp_path / f"out{suffix}").rename(tmp_path / f"run.results{suffix}")
    assert run(options(source, out=tmp_path / "run.results")).resumed == 1  # type: ignore[union-attr]
    prepared = prepare(options(source, out=tmp_path / "out.json"), PROFILE)
    prepared.close()
    assert prepared.notes == [f"{tmp_path / 'out.json'} gets one JSON object a line, as a .jsonl file does"]
