"""The names of a run's files, the places where they cannot be, and what the sidecar remembers."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from brimful.errors import FleetError, UsageError, VersionMismatch
from brimful.run.output.paths import OutputFormat, RunPaths, naming_place
from brimful.run.output.sidecar import Sidecar
from brimful.schema import FILES


@pytest.mark.parametrize(
    ("name", "form", "kinds", "rollouts", "failures"),
    [
        ("out.jsonl", "rollouts", (False, False), "", ".errors.jsonl"),
        ("out", "rollouts", (False, False), "", ".errors.jsonl"),
        ("out.CSV", "rollouts", (True, True), ".rollouts.jsonl", ".errors.jsonl"),
        ("out.tsv", "rollouts", (True, True), ".rollouts.jsonl", ".errors.jsonl"),
        ("out.parquet", "rollouts", (True, True), ".rollouts.jsonl", ".errors.jsonl"),
        ("out.jsonl", "openai-batch", (False, True), ".rollouts.jsonl", ".failures.jsonl"),
    ],
)
def test_the_files_beside_an_output(
    tmp_path: Path, name: str, form: str, kinds: tuple[bool, bool], rollouts: str, failures: str
) -> None:
    paths = RunPaths(tmp_path / name, OutputFormat(form))
    assert (paths.table, paths.converted) == kinds

    def beside(*suffixes: str) -> list[Path]:
        return [tmp_path / f"{name}{suffix}" for suffix in suffixes]

    named = [paths.rollouts, paths.kept, paths.errors, paths.failures, paths.rejected]
    assert named == beside(rollouts, f"{rollouts}.kept", ".errors.jsonl", failures, ".rejected.jsonl")
    named = [paths.sidecar, paths.lines, paths.report]
    assert named == beside(".run.json", ".run.lines", ".report.html")
    every = ("", rollouts, ".errors.jsonl", failures, ".rejected.jsonl", f"{rollouts}.kept", f"{failures}.kept")
    assert set(paths.all) == set(beside(*every, ".rejected.jsonl.kept", ".run.json", ".run.lines"))
    assert len(set(paths.all)) == len(paths.all)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("out.jsonl.gz", "a run cannot resume from a compressed output; leave .gz out"),
        ("out.zst", "leave .zst out"),
        ("out.xlsx", None),
        ("out.docx", r"\.docx files cannot be written"),
        ("out.mp3", r"\.mp3 files cannot be written"),
        ("no/out", "there is no directory .*; make it first: mkdir -p"),
        ("in.jsonl", r"would overwrite the input .*in\.jsonl"),
        (".", "is a directory"),
        ("out.v2", None),
        ("out.txt", None),
        ("out.csv", None),
        ("out", None),
    ],
)
def test_an_output_that_cannot_be_written_is_refused(tmp_path: Path, name: str, said: str | None) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("{}\n")
    (tmp_path / "out.xlsx.run.json").touch()  # a run of an earlier release, which wrote JSON lines under any name
    paths = RunPaths(tmp_path / name)
    if said is None:
        paths.check([str(source), "-"])
    else:
        with pytest.raises(UsageError, match=said):
            paths.check(["-", str(source)])


def test_an_output_that_is_there_is_written_again_where_it_may_be(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.touch()
    RunPaths(out).check([])
    with pytest.raises(UsageError, match="is not writable; choose another place"):
        RunPaths(Path("/proc/self/out.jsonl")).check([])


def test_the_files_of_an_earlier_run_are_renamed_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.strftime", lambda *_: "20260102-030405")
    paths = RunPaths(tmp_path / "out.jsonl")
    assert paths.set_aside() is None
    paths.lines.touch()
    assert paths.set_aside() is None, "an empty lock is no run"
    for time, extra in (("20260102-030405", "errors"), ("20260102-030405x", "rejected")):
        for path in (paths.output, getattr(paths, extra), paths.sidecar):
            path.write_text("x")
        aside = paths.set_aside()
        assert aside == tmp_path / f"out.jsonl.before-{time}"
        names = {f"{aside.name}{suffix}" for suffix in ("", f".{extra}.jsonl", ".run.json")}
        assert names <= {path.name for path in tmp_path.iterdir()}
        assert not any(path.exists() for path in paths.all if path != paths.lines)
    paths.output.write_text("newer")
    paths.put_back(aside)
    assert paths.output.read_text() == "newer"
    assert (paths.rejected.read_text(), paths.sidecar.read_text(), aside.read_text()) == ("x", "x", "x")


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (
            OSError(errno.ENOSPC, "No space left", "OUT"),
            FleetError,
            "cannot write OUT: No space left; the same",
        ),
        (OSError(errno.EACCES, "Denied", b"OUT"), UsageError, "-o OUT: cannot be written: Denied; name another output"),
        (OSError(errno.EACCES, "Denied", "OUT.x"), UsageError, r"-o OUT: cannot be written: Denied \(OUT.x\); name"),
        (OSError("odd"), UsageError, "-o OUT: cannot be written: odd; name another output"),
    ],
)
def test_an_error_of_the_output_s_place_names_it(error: OSError, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said), naming_place(Path("OUT")):
        raise error


def test_a_sidecar_is_read_as_it_was_stored(tmp_path: Path) -> None:
    path = tmp_path / "out.run.json"
    assert Sidecar.load(path) is None
    sidecar = Sidecar.new({"n": 4})
    assert len(sidecar.run) == 16
    assert sidecar.run != Sidecar.new({}).run
    sidecar.limits, sidecar.bad_lines = {"slots": 8}, [[3, 4]]
    sidecar.tries = [{"started": number} for number in range(60)]
    sidecar.store(path)
    assert [each["started"] for each in sidecar.tries] == list(range(10, 60))
    assert Sidecar.load(path) == sidecar
    assert json.loads(path.read_text())["version"] == FILES


@pytest.mark.parametrize(
    ("changed", "kind", "said"),
    [
        ({"version": FILES + 1}, VersionMismatch, "use the release that wrote it, or --fresh"),
        (
            {"bad_lines": [[1]]},
            UsageError,
            r"cannot be read \(bad_lines\.0: List should have at least 2.*--fresh",
        ),
        ({"odd": 1, "run": 7}, UsageError, r"cannot be read \(run: Input should be a valid string\)"),
        (None, UsageError, r"cannot be read \(Expecting value.*remove it to resume from the output, or use --fresh"),
    ],
)
def test_a_sidecar_that_cannot_be_read_says_why(
    tmp_path: Path, changed: dict[str, object] | None, kind: type[Exception], said: str
) -> None:
    path = tmp_path / "out.run.json"
    Sidecar.new({}).store(path)
    path.write_text("half a fi" if changed is None else json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(kind, match=said):
        Sidecar.load(path)


def test_changes_of_a_run_s_parameters_are_shown_in_short() -> None:
    sidecar = Sidecar("r", {"n": 4, "model": "m", "system": "x" * 99, "same": None})
    assert sidecar.changes({"n": 5, "system": "x" * 99, "stop": ["a"]}) == [
        "n was 4 and is 5",
        'stop was not set and is ["a"]',
        'model was "m" and is not set',
    ]
    [change] = Sidecar("r", {"system": "x" * 99}).changes({})
    assert len(change) < 100
