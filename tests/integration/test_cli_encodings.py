"""Every command on terminals that are not UTF-8: plain characters in place of what they lack, and no failed print."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from support.commands import Running, command, environment, records
from support.runs import write_lines

ENCODINGS = {
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "ascii": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}
PROMPT = "Año … → 你好 \N{GRINNING FACE}"


def _printed(encoding: str, *arguments: str | Path, codes: tuple[int, ...] = (0,), **env: str) -> str:
    """Standard output and standard error of a command, which must be in the encoding."""
    env = environment(**ENCODINGS[encoding], **env)
    done = subprocess.run(command(*arguments), env=env, capture_output=True, timeout=120)
    text = (done.stdout + done.stderr).decode(encoding)
    assert done.returncode in codes, text
    for trace in ("internal error", "Traceback", "Logging error", "\\u2026", "\\u2192", "\\u2013", "\\xd7"):
        assert trace not in text, text
    return text


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_a_terminal_lacks_is_escaped(encoding: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "in.jsonl", [{"prompt": PROMPT}, "{"])
    shown = _printed(encoding, "validate", path, codes=(3,))
    assert "... -> \\u4f60\\u597d \\U0001f600" in shown
    assert ("Año" in shown) is (encoding == "latin-1")


@pytest.mark.parametrize("encoding", ["ascii"])
def test_commands_without_a_fleet(encoding: str, tmp_path: Path) -> None:
    assert "      -> " in _printed(encoding, "doctor", codes=(2,))
    assert "INPUT..." in _printed(encoding, "run", "--help").replace("{INPUT}...", "INPUT...")
    said = _printed(encoding, "run", tmp_path / "Año你.txt", "-o", tmp_path / "out.jsonl", codes=(2,))
    assert "no such file" in said
    assert "--order" in _printed(encoding, "run", "in.txt", "-o", tmp_path / "out.jsonl", "--order", "…", codes=(2,))
    with Running("gateway", "--port", "0", **ENCODINGS[encoding]) as gateway:
        gateway.text_until("Ctrl-C stops it")
        assert gateway.interrupt() == 0


@pytest.mark.parametrize("encoding", ["ascii"])
def test_commands_of_a_fleet(encoding: str, tmp_path: Path) -> None:
    path, out = write_lines(tmp_path / "in.jsonl", [{"prompt": PROMPT, "id": PROMPT}, "{"]), tmp_path / "Año.jsonl"
    with Running("up", "--rehearse", "--workers", "1", **ENCODINGS[encoding]) as up:
        url = up.line_with("export BRIMFUL_REDIS_URL=").strip().partition("=")[2]
        gateway = up.line_with("mock gateway").split()[2]
        up.line_with("1 worker ready")
        at = {"BRIMFUL_REDIS_URL": url, "ACS_API_BASE": gateway}
        status = _printed(encoding, "status", **at)
        assert "....." in status
        assert "#" * 3 not in status
        assert "slots" in _printed(encoding, "limits", "show", **at)
        shown = _printed(encoding, "run", path, "-o", out, "--max-tokens", "4", codes=(3,), **at)
        assert "2: 1 sampled, 1 failed" in shown
        assert "bad_input 1 - " in shown
        assert "finished" in _printed(encoding, "runs", "list", **at)
        _printed(encoding, "report", out)
        assert up.interrupt() == 0
    (record,) = records(out)
    assert record["id"] == PROMPT
    assert json.loads((tmp_path / "Año.jsonl.run.json").read_bytes())["tries"]
    assert "<html" in (tmp_path / "Año.jsonl.report.html").read_text("utf-8")
