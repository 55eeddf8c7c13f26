"""``brimful report``: the page of a run, and its figures."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from brimful.errors import InputError, UsageError
from brimful.outcome import Cause, Failure
from brimful.packing.units import Unit
from brimful.run.output.paths import OutputFormat
from brimful.run.report.figures import read_run
from brimful.run.report.page import write_report
from support.fake_driver import FakeDriver
from support.runs import options, records, run, write_lines


def _answer(unit: Unit, prompt: int, choice: int) -> Failure | tuple[str, str]:
    if unit.line == 3:
        return Failure(Cause.CONTENT_FILTER, "400: <script>alert(1)</script>", 400, permanent=True)
    return "<img src=x> & \ud800 " * unit.line, "length" if unit.line % 2 else "stop"


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "img", "link", "iframe", "object"):
            self.found.append(tag)
        self.found += [name for name, _ in attrs if name in ("src", "href") or name.startswith("on")]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    out = tmp_path / "out.jsonl"
    source = write_lines(tmp_path / "in.jsonl", [{"id": f"p{line}", "prompt": "x", "n": 2} for line in range(20)])
    run(options(source, out=out), FakeDriver(_answer))
    return out


def test_the_page_is_self_contained_and_escaped(out: Path) -> None:
    page = write_report(out)
    assert page == out.with_name("out.jsonl.report.html")
    text = page.read_text("utf-8")
    links = _Links()
    links.feed(text)
    assert links.found == []
    assert "url(" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "\\ud800" in text
    charts = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(charts) == 4
    for chart in charts:
        ElementTree.fromstring(chart)
    assert "slots 16" in text
    assert "starts 600" in text


def test_the_figures_equal_a_recount(out: Path) -> None:
    figures = read_run(out)
    there = records(out)
    assert figures.counts.rollouts == len(there) == 38
    assert figures.requests == len({record["request_id"] for record in there})
    assert dict(figures.causes) == {"content_filter": 1}
    assert figures.finish_reasons["length"] == sum(record["finish_reason"] == "length" for record in there)
    assert sum(figures.timeline.ended.values()) == 38
    assert sum(figures.timeline.busy.values()) == pytest.approx(figures.requests * 500, abs=30)
    assert figures.longest[0]["line"] == 20


def test_an_incomplete_last_line_is_ignored(out: Path) -> None:
    with out.open("ab") as file:
        file.write(b'{"id": "p')
    assert read_run(out).counts.rollouts == 38


def test_other_output_formats_have_a_page(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.txt", ["a", "b"])
    for name, form in (("o.jsonl", OutputFormat.OPENAI_BATCH), ("o.parquet", OutputFormat.ROLLOUTS)):
        run(options(source, out=tmp_path / name, form=form))
        assert read_run(tmp_path / name).counts.rollouts == 2


def test_a_file_that_is_not_a_run_s_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_run(tmp_path / "nothing.jsonl")
    path = write_lines(tmp_path / "prompts.jsonl", [{"prompt": "a"}])
    with pytest.raises(InputError, match=r"prompts.jsonl:1: is not a record of a run"):
        read_run(path)
    write_lines(path, ["not JSON", json.dumps({"a": 1})])
    with pytest.raises(InputError, match=r"prompts.jsonl:1: is not a record of a run"):
        read_run(path)
    path.write_text("")
    with pytest.raises(InputError, match="holds no rollouts yet"):
        read_run(path)
