"""Changes of the input between two tries of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from brimful.errors import InputError, UsageError
from brimful.run.input.changes import LineDigests, name_lines
from support.fake_driver import FakeDriver
from support.runs import options, prompts, run


def test_digests_are_stored_and_the_file_is_locked(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl.run.lines"
    digests = LineDigests(path)
    assert digests.created
    for line in range(1, 1001):
        digests.note(line, line * 7)
    digests.store()
    with pytest.raises(UsageError, match=r"another run is writing .*out.jsonl:"):
        LineDigests(path)
    digests.close()
    again = LineDigests(path)
    assert not again.created
    assert again.differs(10, 71)
    assert not again.differs(10, 70)
    assert not again.differs(1001, 5)
    again.note(10, 71)
    again.note(1001, 5)
    again.store()
    again.close()
    last = LineDigests(path)
    assert (last.known[9], last.known[1000], len(last.known), last.known[998]) == (71, 5, 1001, 999 * 7)
    last.close()


def test_changed_lines_are_listed() -> None:
    assert name_lines([7]) == "line 7"
    assert name_lines([7, 9]) == "lines 7 and 9"
    assert name_lines(range(1, 17)) == "lines 1, 2, 3, 4, 5 and 11 more"


def test_a_changed_input_is_refused_naming_the_lines(tmp_path: Path) -> None:
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, 10)
    run(options(source, out=out), FakeDriver(die_after=3))
    text = source.read_text()
    source.write_text(text.replace("Say 1", "Sag 1").replace("Say 8", "Sag 8"))
    with pytest.raises(InputError, match=r"lines 2 and 9 of the input changed.*--fresh"):
        run(options(source, out=out))
    source.write_text("\n".join(text.splitlines()[:-1]) + "\n")
    with pytest.raises(InputError, match="had 10 lines at the last try, now 9"):
        run(options(source, out=out))
    source.write_text(text + '{"id": "new", "prompt": "Say more"}\n')
    summary = run(options(source, out=out))
    assert summary is not None
    assert summary.succeeded == 11
