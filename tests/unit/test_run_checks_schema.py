"""What counts as JSON in a text, schemas, and loading schemas and hooks by name."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from brimful.errors import UsageError
from brimful.hooks import Completion, Line
from brimful.run.checks.hook import load_hook
from brimful.run.checks.json_text import NotJson, find_json
from brimful.run.checks.options import load_checks
from brimful.run.checks.schema import Invalid, Schema, load_schema
from brimful.run.checks.verdict import Accepted, Broken, Rejected

ARRAY = "class Array:\n    def __init__(self, value): self.tolist = lambda: value\n"
"""As numpy's scalars and arrays."""
LINE, COMPLETION = Line(1, "x", "p"), Completion("t", "stop", 0, 0, 1, "m")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (' {"a": 1}\n', {"a": 1}),
        ("7", 7),
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ('Here it is:\n```JSON\n{"a": 1}\n```\nAnything else?', {"a": 1}),
        ("```\n[1]\n```", [1]),
        ('```python\nx = 1\n```\n```json\n{"a": "```"}\n```', {"a": "```"}),
        ('"\\ud800"', "\ud800"),
    ],
)
def test_the_json_of_a_text(text: str, value: Any) -> None:
    assert find_json(text)[1] == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("```json\n```", "empty"),
        ('Sure: {"a": 1}', "Expecting value at line 1, column 1"),
        ('{"a": 1} trailing', "Extra data at line 1, column 10"),
        ('{"a": 1', "line 1, column 8"),
        ("```json\n1\n```\n```json\n2\n```", "2 fenced blocks"),
        ("NaN", "NaN is not a JSON value"),
        ("[" * 100_000, "nested too deeply"),
        ("9" * 5000, "no JSON"),
    ],
)
def test_what_is_no_json_and_why(text: str, why: str) -> None:
    with pytest.raises(NotJson, match=why):
        find_json(text)


def schema(tmp_path: Path, content: Any) -> Schema:
    path = tmp_path / "schema.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return load_schema(str(path))


def test_reasons_name_the_place_in_the_value(tmp_path: Path) -> None:
    found = schema(
        tmp_path,
        {
            "$defs": {"age": {"type": "integer", "minimum": 0}},
            "type": "object",
            "properties": {"people": {"type": "array", "items": {"$ref": "#/$defs/age"}}},
            "required": ["people"],
        },
    )
    assert found.check('{"people": [1, 2]}') == {"people": [1, 2]}
    for text, why in (
        ('{"people": [1, -2]}', r"\$\.people\[1\]: -2 is less than the minimum of 0"),
        ("{}", r"\$: 'people' is a required property"),
        ('{"people": ["' + "x" * 1000 + '"]}', r"\$\.people\[0\]: 'xxx.*…$"),
        ("[]", r"\$: \[\] is not of type 'object'"),
        ("x", "no JSON"),
    ):
        with pytest.raises(Invalid, match=why) as caught:
            found.check(text)
        assert len(str(caught.value)) <= 300


def test_what_a_module_prints_goes_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load_hook(module(tmp_path, "print('loading')\ndef check(line, completion): ...\n", "talkative") + ":check")
    assert capsys.readouterr() == ("", "loading\n")


def test_a_schema_is_known_by_what_it_says(tmp_path: Path) -> None:
    one = schema(tmp_path, {"type": "object", "title": "x"}).identity
    assert one == schema(tmp_path, '{ "title": "x",\n"type": "object"}').identity
    assert one != schema(tmp_path, {"type": "array"}).identity


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "is no JSON"),
        ('{"type": "nosuch"}', r"is no valid JSON Schema: \$\.type: "),
        ("[]", "is an object"),
        ('{"$ref": "#/$defs/x"}', r"\$ref '#/\$defs/x' leads nowhere"),
        ('{"properties": {"a": {"$ref": "http://127.0.0.1:9/x.json"}}}', "other documents are not fetched"),
        ('{"$ref": "other.json"}', "other documents are not fetched"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_before_anything_is_sampled(
    tmp_path: Path, content: str, why: str
) -> None:
    with pytest.raises(UsageError, match=f"^--schema .*{why}"):
        schema(tmp_path, content)


def test_a_schema_without_its_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(UsageError, match=r"pip install 'brimful\[schema\]'"):
        schema(tmp_path, {})


def module(tmp_path: Path, body: str, name: str = "mine_of_test") -> str:
    (tmp_path / f"{name}.py").write_text("from brimful.hooks import Again\n" + textwrap.dedent(body))
    return str(tmp_path / f"{name}.py")


def test_pydantic_models_by_file_and_by_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
    from typing import Annotated
    from pydantic import BaseModel, Field
    class Person(BaseModel):
        age: Annotated[int, Field(ge=0)]
    Ages = list[Person]
    """
    path = module(tmp_path, body, "models_a")
    monkeypatch.chdir(tmp_path)
    for name in (f"{path}:Person", "models_a:Person"):
        found = load_schema(name)
        assert found.check('{"age": 3}').age == 3
        with pytest.raises(Invalid, match=r"\$\.age: Input should be greater than or equal to 0"):
            found.check('{"age": -1}')
        assert name in found.identity
        assert "sha256:" in found.identity
    assert [each.age for each in load_schema("models_a:Ages").check('[{"age": 1}]')] == [1]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nosuch_module:f", "there is no module 'nosuch_module'"),
        ("{path}:nosuch", "has no 'nosuch'; it has good, one"),
        ("{path}:NUMBER", "is not a function"),
        ("{path}:one", "must take two arguments: a line and a completion"),
        ("{path}", "must be module:name, or file.py:name"),
        ("/nosuch/file.py:f", "there is no file /nosuch/file.py"),
        ("{broken}:f", r"cannot be imported: ModuleNotFoundError: No module named 'nosuch_needed' \(broken.py:3"),
        ("{syntax}:f", r"cannot be imported: SyntaxError: .*\(syntax_.py:3"),
        ("{exits}:f", "cannot be imported: SystemExit: 3"),
    ],
)
def test_a_hook_that_cannot_be_loaded(tmp_path: Path, name: str, why: str) -> None:
    paths = {
        "path": module(tmp_path, "NUMBER = 1\ndef good(a, b): ...\ndef one(a): ...\n"),
        "broken": module(tmp_path, "\nimport nosuch_needed\n", "broken"),
        "syntax": module(tmp_path, "\ndef f(:\n", "syntax_"),
        "exits": module(tmp_path, "raise SystemExit(3)", "exits"),
    }
    with pytest.raises(UsageError, match=f"^--hook .*{why}"):
        load_hook(name.format(**paths))


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        ("return None", Accepted()),
        ("return {'a': (1, {2}), 'b': None}", Accepted({"a": [1, [2]], "b": None})),
        ("import datetime; return {'t': datetime.date(2026, 1, 2)}", Accepted({"t": "2026-01-02"})),
        ("return {'s': Array(0.5), 'v': [Array([0, 1])]}", Accepted({"s": 0.5, "v": [[0, 1]]})),
        ("raise Again('no\\n  number')", Rejected("hook", "no number")),
        ("raise Again", Rejected("hook", "no reason given")),
        ("return Again('x')", "it returned Again: raise it"),
        ("return 0.5", "it returned a float: return a dict of columns, or None"),
        ("return {1: 2}", "it returned the column 1: names of columns are strings"),
        ("return {'x': object()}", "it returned a column 'x' that is no JSON: .*a object has no form in JSON"),
        ("return {'x': 10**5000}", "it returned a column 'x' that is no JSON: .*4300 digits"),
        ("return {'x': '\\ud800'}", Accepted({"x": "\ud800"})),
        ("raise StopIteration", r"StopIteration \(mine_of_test.py:5, in check\)"),
        ("raise SystemExit(3)", r"SystemExit: 3 \(mine_of_test.py:5, in check\)"),
        ("import json; json.loads('{')", r"JSONDecodeError: .*\(mine_of_test.py:5, in check\)"),
    ],
)
def test_what_a_hook_returns_or_raises(tmp_path: Path, body: str, verdict: Any) -> None:
    hook = load_hook(module(tmp_path, f"{ARRAY}def check(line, completion):\n    {body}\n") + ":check")
    found = hook.begin(LINE, COMPLETION)
    if isinstance(verdict, str):
        assert isinstance(found, Broken)
        assert re.match(verdict, found.reason), found.reason
    else:
        assert found == verdict


@pytest.mark.parametrize("option", ["tries", "workers", "timeout_s", "keep_rejected"])
def test_an_option_of_checks_alone_is_refused(option: str) -> None:
    assert load_checks(None, None, tries=None, workers=None, timeout_s=None, keep_rejected=False) is None
    with pytest.raises(
        UsageError, match=r"^--(tries|hook-workers|hook-timeout|keep-rejected): needs --schema or --hook"
    ):
        load_checks(None, None, **{option: 2})
