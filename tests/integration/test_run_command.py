"""The commands run, validate and report, without a fleet."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from brimful.cli.commands import run_command
from support.commands import Running, brimful, environment
from support.made_runs import make_run
from support.runs import write_lines

KEYED = {"ACS_API_BASE": "http://127.0.0.1:9/v1", "ACS_API_KEY": "sk-canary-2d9f"}
GOOD = {"prompt": "The sky is"}


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Done]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command in this process: what it prints and returns is the same, and it is quicker by far."""

    def run(*arguments: str | Path, **env: str) -> Done:
        with monkeypatch.context() as patch:
            for name, value in {**KEYED, **env}.items():
                patch.setenv(name, value)
            code = run_command([str(argument) for argument in arguments])
        return Done(code, *capsys.readouterr())

    return run


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (None, "no such file"),
        ([], "is empty"),
        (["", " "], "only blank lines"),
        (["{x", "{"], ":1: is not JSON"),
        ([{**GOOD, "n": 0}], ":1: n: must be a whole number of at least 1"),
        ([{**GOOD, "max_tokens": 32_001}], "32,000"),
        ([{"id": 1}], ":1: has no prompt"),
        ([b"\xff\xfeh\x00i\x00"], "UTF-16"),
        ([b'{"prompt": "\xff"}'], ":1: is not UTF-8"),
    ],
    ids=str,
)
def test_bad_input_is_refused_by_run_and_validate(
    command: Command, tmp_path: Path, lines: list[object] | None, words: str
) -> None:
    path, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    if lines is not None:
        write_lines(path, lines)
    for done in (command("run", path, "-o", out), command("validate", path)):
        assert done.returncode == 2
        assert words in done.stderr
        assert str(path) in done.stderr or "blank" in words
        assert "Traceback" not in done.stderr
        assert done.stdout == ""
    assert [entry for entry in tmp_path.iterdir() if entry.name.startswith("out")] == []


def test_strict_stops_before_anything_is_sampled(command: Command, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "in.jsonl", [GOOD] * 6 + ["{not json"])
    done = command("run", path, "-o", tmp_path / "out.jsonl", "--strict")
    assert done.returncode == 2
    assert f"{path}:7: is not JSON" in done.stderr
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--pack", "many"], "--pack: 'many'"),
        (["--order", "random"], "Invalid value for '--order': 'random' is not one of 'completion', 'input'"),
        (["--format", "xml"], "Invalid value for '--format': 'xml' is not one of"),
        (["--workload", "urgent"], "Invalid value for '--workload': 'urgent'"),
        (["--input-format", "xml"], "Invalid value for '--input-format': 'xml'"),
        (["--param", "top_p"], "must be NAME=VALUE"),
        (["--chat", "--job"], "--chat and --job exclude each other"),
        (["--n", "0"], "Invalid value for '--n'"),
        (["--system", "x"], "--chat"),
        (["--n", "two"], "Invalid value"),
        (["--provider", "nobody"], "unknown provider 'nobody'"),
        (["--unknown"], "No such option"),
    ],
    ids=str,
)
def test_a_bad_option_is_named(command: Command, tmp_path: Path, arguments: list[str], words: str) -> None:
    path = write_lines(tmp_path / "in.jsonl", [GOOD])
    done = command("run", path, "-o", tmp_path / "out.jsonl", *arguments)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["in.jsonl"]


def test_an_unreachable_redis_or_provider_leaves_nothing_behind(command: Command, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "in.jsonl", [GOOD])
    done = command("run", path, "-o", tmp_path / "out.jsonl", BRIMFUL_REDIS_URL="redis://user:secret@127.0.0.1:9/0")
    assert done.returncode == 2
    assert "BRIMFUL_REDIS_URL" in done.stderr
    assert "secret" not in done.stderr
    done = command("run", path, "-o", tmp_path / "out.jsonl")
    assert done.returncode == 2
    assert "127.0.0.1:9" in done.stderr
    assert "ACS_API_BASE" in done.stderr
    assert KEYED["ACS_API_KEY"] not in done.stderr
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_file()] == ["in.jsonl"]


def test_validate_reads_standard_input_and_prints_one_object(tmp_path: Path) -> None:
    done = brimful("validate", "-", "--json", "--n", "2", "--max-tokens", "8", stdin="one\n\ntwo\n")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["requests"], found["rollouts"], found["tokens_at_most"]) == (2, 4, 32)
    path = write_lines(tmp_path / "in.jsonl", [GOOD, "{"])
    done = brimful("validate", path)
    assert done.returncode == 3
    assert f"{path}:2: is not JSON" in done.stderr
    assert '"prompt": "The sky is"' in done.stdout


def test_validate_says_that_slots_are_learnt(command: Command, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "in.jsonl", [GOOD])
    assert "auto" not in command("validate", path).stdout
    for starts in ("600", "0"):
        learnt = command("validate", path, BRIMFUL_SLOTS="auto", BRIMFUL_STARTS=starts)
        assert "16 slots assumed (auto: the workers learn how many the key has)" in learnt.stdout
    found = json.loads(command("validate", path, "--json", BRIMFUL_SLOTS="auto").stdout)
    assert (found["slots"], found["slots_auto"]) == (16, True)


def test_report_refuses_a_file_that_is_not_a_run_s(command: Command, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "in.jsonl", [GOOD])
    for name in (path, tmp_path / "nothing"):
        done = command("report", name)
        assert done.returncode == 2
        assert str(name) in done.stderr
        assert "Traceback" not in done.stderr


def test_report_serves_a_run_on_this_machine_until_ctrl_c(command: Command, tmp_path: Path) -> None:
    out = make_run(tmp_path / "out.jsonl", 3, 2)
    with Running("report", out, "--serve") as serving:
        url = serving.line_with("http://127.0.0.1:").strip()
        with urllib.request.urlopen(f"{url}groups?from=0&to=3", timeout=60) as answer:
            assert len(json.load(answer)) == 3
        assert serving.interrupt() == 0
    assert not out.with_name("out.jsonl.report.html").exists()
    done = command("report", out, "--serve", "-p", tmp_path / "page.html")
    assert done.returncode == 2
    assert "--page names a file" in done.stderr


@pytest.mark.parametrize(
    ("field", "command_name"),
    [("text", "report"), ("usage", "report"), ("usage", "run"), ("line", "run"), ("provider_s", "report")],
)
def test_a_damaged_record_is_named(command: Command, tmp_path: Path, field: str, command_name: str) -> None:
    path, out = write_lines(tmp_path / "in.jsonl", [GOOD]), tmp_path / "out.jsonl"
    record = {"id": "1", "line": 1, "prompt_index": 0, "choice_index": 0, "of": 2, "text": "a", "finish_reason": "stop"}
    record |= {"usage": None, "model": "m", "attempts": 1, "request_id": "r", "packed": 1, "started_at": 5.0}
    record |= {"ended_at": 6.0, "waited_s": 0.0, "provider_s": 1.0, "retrying_s": 0.0}
    write_lines(out, [record, {**record, field: ["spoilt"]}])
    done = command("report", out) if command_name == "report" else command("run", path, "-o", out)
    assert done.returncode == 2, done.stderr
    assert f"{out}:2: is not a record of a run" in done.stderr


@pytest.mark.parametrize("spoilt", [{"limits": 5}, {"bad_lines": [[1]]}, {"tries": [1]}, {"run": None}, {"more": 1}])
def test_a_damaged_sidecar_is_named(command: Command, tmp_path: Path, spoilt: dict[str, object]) -> None:
    path, out = write_lines(tmp_path / "in.jsonl", [GOOD]), tmp_path / "out.jsonl"
    write_lines(out, [])
    file = tmp_path / "out.jsonl.run.json"
    file.write_text(json.dumps({"version": 1, "run": "r", "parameters": {}, **spoilt}))
    for done in (command("report", out), command("run", path, "-o", out)):
        assert done.returncode == 2
        assert f"{file}: cannot be read" in done.stderr
        assert "--fresh" in done.stderr


def test_the_help_needs_no_worker_code() -> None:
    code = (
        "import sys; from brimful.cli.commands import run_command; run_command(['run', '--help']);"
        "sys.exit(any(name.partition('.')[0] == 'brimful_worker' for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "--budget-tokens" in done.stdout


def test_files_of_people_are_read_by_name_pattern_and_folder(command: Command, tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(f"question,answer\n{name},1\n")
    for given in (tmp_path, tmp_path / "*.csv"):
        done = command("validate", given, "--prompt-column", "question", "--json")
        found = json.loads(done.stdout)
        assert (done.returncode, found["requests"], found["first"]["prompt"]) == (0, 2, "a.csv")
        assert {column["name"] for column in found["columns"]} == {"question", "answer"}
    (tmp_path / "notes.xlsx").write_bytes(b"PK\x03\x04")
    assert "left out notes.xlsx" in command("validate", tmp_path, "--prompt-column", "question").stderr
    wrong = command("validate", tmp_path / "a.csv", "--prompt-column", "answr")
    assert (wrong.returncode, "did you mean 'answer'?" in wrong.stderr) == (2, True)
    bare = command("validate", tmp_path / "a.csv", "--prompt-column", "column_2", "--no-header")
    assert bare.returncode == 0
