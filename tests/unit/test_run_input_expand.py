"""Directories and patterns as inputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from brimful.errors import UsageError
from brimful.run.input.files.expand import expand


def make(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x\n")


def names(given: str, folder: Path) -> tuple[list[str], list[str]]:
    files, notes = expand([given])
    return [str(Path(file).relative_to(folder)) for file in files], notes


def test_a_directory_is_the_data_files_in_it(tmp_path: Path) -> None:
    make(
        tmp_path,
        "b-00001.jsonl",
        "b-00000.jsonl.gz",
        "c.json",
        "README.md",
        "dataset_info.json",
        ".hidden.jsonl",
        "d/e.csv",
    )
    assert names(str(tmp_path), tmp_path) == (
        ["b-00000.jsonl.gz", "b-00001.jsonl", "c.json"],
        [f"{tmp_path}: left out README.md, dataset_info.json"],
    )


def test_what_a_run_wrote_into_the_directory_is_left_out(tmp_path: Path) -> None:
    out = ["out.jsonl", "out.jsonl.run.json", "out.jsonl.run.lines", "out.jsonl.errors.jsonl"]
    make(tmp_path, "a.jsonl", *out)
    assert names(str(tmp_path), tmp_path)[0] == ["a.jsonl"]
    assert names(f"{tmp_path}/*.jsonl", tmp_path) == (
        ["a.jsonl"],
        [f"{tmp_path}/*.jsonl: left out out.jsonl, out.jsonl.errors.jsonl"],
    )


def test_a_directory_without_one_kind_of_data_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "mixed", "a.jsonl", "b.csv", "c.csv")
    with pytest.raises(UsageError, match=r"different kinds \(a.jsonl, b.csv\); name those .* '.*mixed/\*.jsonl'"):
        expand([str(tmp_path / "mixed")])
    make(tmp_path / "nested", "train/a.parquet", "LICENSE")
    with pytest.raises(UsageError, match=r"nested: holds no data file \(train/, LICENSE\); name one, or a folder of"):
        expand([str(tmp_path / "nested")])
    (tmp_path / "bare").mkdir()
    with pytest.raises(UsageError, match="it is empty"):
        expand([str(tmp_path / "bare")])


def test_a_pattern_is_the_files_that_match_it(tmp_path: Path) -> None:
    make(tmp_path, "b.csv", "a.csv", "c.jsonl", "d/e/f.csv", "[x].csv")
    assert names(f"{tmp_path}/?.csv", tmp_path) == (["a.csv", "b.csv"], [])
    assert names(f"{tmp_path}/**/*.csv", tmp_path)[0] == ["[x].csv", "a.csv", "b.csv", "d/e/f.csv"]
    assert names(f"{tmp_path}/[x].csv", tmp_path)[0] == ["[x].csv"]
    with pytest.raises(UsageError, match="no file matches"):
        expand([f"{tmp_path}/*.tsv"])


def test_inputs_keep_their_order(tmp_path: Path) -> None:
    make(tmp_path, "z.jsonl", "d/a.csv", "d/b.csv")
    files, _ = expand([str(tmp_path / "z.jsonl"), "-", str(tmp_path / "d"), "gone.jsonl"])
    assert files == [str(tmp_path / "z.jsonl"), "-", str(tmp_path / "d/a.csv"), str(tmp_path / "d/b.csv"), "gone.jsonl"]


def test_an_empty_name_is_not_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "a.jsonl")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="INPUT: is empty; name a file"):
        expand([""])
