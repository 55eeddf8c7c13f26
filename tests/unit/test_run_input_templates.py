"""Prompts made from the columns of a line: both kinds of templates, their faults, messages and images."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from brimful.errors import BrimfulError, InputError, UsageError
from brimful.names import Mode
from brimful.packing.units import Unit
from brimful.run.input.formats import ColumnNames
from brimful.run.input.reader import BadLine, Reader, ReadOptions
from brimful.run.input.sources import Source
from brimful.run.input.survey import survey
from brimful.run.input.templates.jinja import Text
from brimful.run.input.templates.template import Renderer, Templates, load_templates
from brimful.run.validate import validate
from support.runs import PROFILE, options, prompts, records, run, write_lines

PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)
ROW = {"question": "2+2?", "n": 4, "null": None, "tags": ["a", {"b": True}], "Full name": "Ada", "a.b": 1}
Rendering = Callable[[str], str]


def templates(prompt: str | None = None, **more: str | None) -> Templates:
    given = {"template_file": None, "system_template": None, "messages_template": None, **more}
    found = load_templates(prompt, **given)
    assert found is not None
    return found


@pytest.fixture
def render() -> Iterator[Rendering]:
    """Renders a template for :data:`ROW`."""
    made: list[Renderer] = []

    def rendered(text: str) -> str:
        made.append(Renderer(Templates(prompt=Text(text, "--template"))))
        return str(made[-1].fields(ROW, None)["prompt"])

    yield rendered
    for each in made:
        each.close()


def read(path: Path, mine: Templates, **more: Any) -> list[Unit | BadLine]:
    asked = ReadOptions((Source(str(path)),), defaults={"max_tokens": 8}, templates=mine, **more)
    return [entry.item for entry in Reader(asked, PROFILE).entries() if entry.item is not None]


@pytest.mark.parametrize(
    ("text", "prompt"),
    [
        ("Q: {question}\nA:", "Q: 2+2?\nA:"),
        ('{"q": "{question}", "n": {n}, "x": {"y": []}} {} {x+1} {;}', None),
        ("{Full name} { n } {a.b}", "Ada 4 1"),
        ("{tags} {tags.0} {tags.1.b}", '["a", {"b": true}] a true'),
        ("{{ question }} {a} {{ tags[1] }} {{ row['Full name'] }}", '2+2? {a} {"b": true} Ada'),
        ("{% for tag in tags %}{{ loop.index }}{% endfor %}{# none #}", "12"),
        ("{% if null %}{{ null }}{% endif %}{{ null or 'none' }}", "none"),
        ("{{ tags|tojson }} {{ '<b>&' }}", '["a", {"b": true}] <b>&'),
    ],
)
def test_columns_are_filled_in(render: Rendering, text: str, prompt: str | None) -> None:
    assert render(text) == (prompt or '{"q": "2+2?", "n": 4, "x": {"y": []}} {} {x+1} {;}')


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "{Question}",
            "column 'Question' of --template is missing (did you mean 'question'?); the line has question, n",
        ),
        ("{tags.7}", "column 'tags.7' of --template is missing"),
        ("{null}", "column 'null' of --template is null"),
        ("{{ Question }}", "column 'Question' of --template is missing (did you mean 'question'?)"),
        ("{% if hint %}x{% endif %}", "column 'hint' of --template is missing"),
        ("{{ null }}", "--template: an expression is null"),
        ("{{ tags[0].x }}", "--template: 'str object' has no attribute 'x'"),
        ("{{ n / 0 }}", "--template: division by zero"),
    ],
)
def test_a_fault_names_the_column(render: Rendering, text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        render(text)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "text", ["{{ question", '{{"q": "{question}"}}', "{% for %}", "{{ n|nothing }}", "{{ [1]|random }}"]
)
def test_what_is_no_template_is_refused_before_anything_is_read(text: str) -> None:
    with pytest.raises(UsageError, match="--template: is no Jinja2 template: "):
        templates(text)


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ question.format.__globals__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ self.__init__ }}",
        "{{ row.update({'n': 1}) }}",
        "{{ '{0.__class__}'.format(n) }}",
        "{% include '/etc/passwd' %}",
        "{{ 'a' * 10 ** 10 }}",
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}",
    ],
)
def test_a_hostile_template_harms_only_its_line(render: Rendering, text: str) -> None:
    with pytest.raises(BrimfulError, match=r"^--template"):
        render(text)


def test_an_endless_template_is_ended_and_after_three_lines_given_up() -> None:
    loop = "{% for i in range(n) %}{% for j in range(n) %}{% endfor %}{% endfor %}{{ n }}"
    renderer = Renderer(Templates(prompt=Text(loop, "--template")), cpu_s=0.3)
    try:
        assert renderer.fields({"n": 2}, None) == {"prompt": "2"}
        with pytest.raises(InputError, match="--template: takes too much time or memory for this line"):
            renderer.fields({"n": 99999}, None)
        assert renderer.fields({"n": 3}, None) == {"prompt": "3"}
        for n in (99999, 99999, 99999, 3):
            with pytest.raises(InputError, match="does it loop without end"):
                renderer.fields({"n": n}, None)
    finally:
        renderer.close()


def test_the_process_that_renders_has_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACS_API_KEY", "sk-secret")
    before = set(psutil.Process().children())
    renderer = Renderer(templates("{{ n }}"))
    try:
        assert renderer.fields({"n": 1}, None) == {"prompt": "1"}
        [process] = set(psutil.Process().children()) - before
        assert "sk-secret" not in process.environ().values()
    finally:
        renderer.close()


def test_line_breaks_in_an_option_and_braces_in_a_text() -> None:
    made = load_templates(r"{q}\nA: \\nu \frac{1}{2}", None, None, None)
    assert made is not None
    assert Renderer(made).fields({"q": 1}, None) == {"prompt": "1\nA: \\nu \\frac{1}{2}"}


def test_the_line_keeps_its_columns_and_needs_no_prompt(tmp_path: Path) -> None:
    lines = [{"id": 7, "question": "a", "answer": "b", "temperature": 0.5}, {"prompt": "c", "question": "d"}]
    one, two = read(write_lines(tmp_path / "in.jsonl", lines), templates("{question}?"))
    assert isinstance(one, Unit)
    assert isinstance(two, Unit)
    assert dict(one.request.fields) == {"prompt": "a?", "temperature": 0.5, "max_tokens": 8}
    assert (one.id, dict(one.columns)) == ("7", {"question": "a", "answer": "b"})
    assert (two.request.prompts, dict(two.columns)) == (["d?"], {"prompt": "c", "question": "d"})


def test_plain_text_is_the_column_prompt(tmp_path: Path) -> None:
    (item,) = read(write_lines(tmp_path / "in.txt", ["hello"]), templates("Say {prompt}"))
    assert isinstance(item, Unit)
    assert item.request.prompts == ["Say hello"]


def test_tables_are_rows_too(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text('key,Full name,age\nk1,"Ada, ""the first""",4\nk2,Bob,5\n')
    one, two = read(path, templates("{Full name}: {age} {key}"), names=ColumnNames(id="key"))
    assert isinstance(one, Unit)
    assert isinstance(two, Unit)
    assert (one.id, one.request.prompts) == ("k1", ['Ada, "the first": 4 k1'])
    assert dict(two.columns) == {"key": "k2", "Full name": "Bob", "age": "5"}


def test_a_system_template_needs_chat_and_a_prompt_of_the_line_s(tmp_path: Path) -> None:
    mine = templates(None, system_template="Be {how}.")
    line = {"prompt": "a", "how": "brief"}
    (item,) = read(write_lines(tmp_path / "in.jsonl", [line]), mine, mode=Mode.CHAT)
    assert isinstance(item, Unit)
    wanted = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a"}]
    assert item.request.fields["messages"] == wanted
    with pytest.raises(InputError, match=r"system: .*\(the same for all 2 lines\)"):
        validate(ReadOptions((Source(str(write_lines(tmp_path / "b.jsonl", [line, line]))),), templates=mine), PROFILE)


def test_missing_columns_are_named_by_line_or_once(tmp_path: Path) -> None:
    lines: list[Any] = [{"q": "a"}, {"x": 1}, {"q": "b"}]
    path = write_lines(tmp_path / "in.jsonl", lines)
    good, bad, _ = read(path, templates("{q}"))
    assert isinstance(good, Unit)
    assert str(bad) == f"{path}:2: column 'q' of --template is missing; the line has x"
    none = write_lines(tmp_path / "none.jsonl", [{"x": 1}, {"y": 1}, {"z": 1}])
    asked = ReadOptions((Source(str(none)),), templates=templates("{q}"))
    with pytest.raises(InputError) as caught:
        survey(asked, PROFILE).check(strict=False)
    assert str(caught.value) == "column 'q' of --template is missing; the line has x (the same for all 3 lines)"


def test_messages_in_yaml_or_json(tmp_path: Path) -> None:
    structure = [{"role": "user", "content": "Q: {q}"}, {"role": "assistant", "content": '{{ a }} {"b"}'}]
    yaml = "- role: user\n  content: 'Q: {q}'\n- role: assistant\n  content: |-\n    {{ a }} {\"b\"}\n"
    line = write_lines(tmp_path / "in.jsonl", [{"q": 1, "a": 2, "response_format": {"type": "text"}}])
    for name, text in (("m.json", json.dumps(structure)), ("m.yaml", yaml)):
        (tmp_path / name).write_text(text)
        (item,) = read(line, templates(messages_template=str(tmp_path / name)))
        assert isinstance(item, Unit)
        assert [each["content"] for each in item.request.fields["messages"]] == ["Q: 1", '2 {"b"}']
        assert "response_format" in item.request.fields


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must be a list of messages"),
        ("a: 1", "must be a list of messages"),
        ("- role: user\n  content: {q}", "begins with a brace"),
        ("- role: user\n  content: {{q}}", "quote texts that hold"),
        ("- role: user\n  content: [3]", "a part of message 1 must be"),
        ("- content: a", "message 1 must have a role"),
        ("- role: user\n  content: a\n  content: b", "'content' stands twice in one object"),
        ('[{"role": "a", "content": "b", "role": "c"}]', "'role' stands twice in one object"),
        ("- {role: user, content: a, when: 2020-13-45}", "a value cannot be read"),
        ("- role: user\n  content:\n  - text: yes", "text of message 1 must be a text; quote it"),
        ("- &a {role: user, content: b}\n- *a", "has an alias"),
        ("- {role: user, content: a, when: 2020-01-01}", "is a date; quote it"),
        ("- !!python/object:os.system {}", "could not determine a constructor"),
        ("[" * 5000, "nested too deeply"),
    ],
)
def test_a_messages_template_that_is_none_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "m.yaml").write_text(text)
    with pytest.raises(UsageError, match=says):
        templates(messages_template=str(tmp_path / "m.yaml"))


def test_images_are_urls_or_files_below_the_input_s_folder(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "img").mkdir(parents=True)
    (folder / "img" / "a.png").write_bytes(PNG)
    (folder / "img" / "link.png").symlink_to("a.png")
    (folder / "img" / "key.png").write_text("ACS_API_KEY=sk-secret")
    (folder / "img" / "big.png").write_bytes(PNG)
    os.truncate(folder / "img" / "big.png", 21 << 20)
    os.mkfifo(folder / "img" / "pipe.png")
    (tmp_path / "out.png").write_bytes(PNG)
    (folder / "img" / "out.png").symlink_to(tmp_path / "out.png")
    (folder / "img" / "circle.png").symlink_to("circle.png")
    (tmp_path / "m.yaml").write_text("- role: user\n  content:\n  - text: Look\n  - image: '{place}'\n")
    places = {
        "https://a.example/b.png": "https://a.example/b.png",
        "img/a.png": "data:image/png;base64,",
        "img/link.png": "data:image/png;base64,",
        "../out.png": "is not below the input's folder",
        str(tmp_path / "out.png"): "is not below the input's folder",
        "img/out.png": "is not below the input's folder",
        "img/circle.png": "cannot be read",
        "img/none.png": "cannot be read",
        "img/\0.png": "cannot be read",
        "img": "Is a directory",
        "img/pipe.png": "is no file",
        "img/key.png": "is no PNG, JPEG, GIF or WebP image",
        "img/big.png": "make it smaller",
        "file:///etc/passwd": "cannot be read",
    }
    path = write_lines(folder / "in.jsonl", [{"place": place} for place in places])
    items = read(path, templates(messages_template=str(tmp_path / "m.yaml")))
    assert len(items) == len(places)
    for item, wanted in zip(items, places.values(), strict=True):
        if isinstance(item, Unit):
            part = item.request.fields["messages"][0]["content"][1]
            assert part["type"] == "image_url"
            assert part["image_url"]["url"].startswith(wanted)
        else:
            assert wanted in item.message, item
    assert sum(isinstance(item, Unit) for item in items) == 3


def test_validate_shows_the_first_rendered_request_and_what_is_carried(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "in.jsonl", [{"q": "a", "answer": 1}, {"q": "b", "answer": 2}])
    asked = ReadOptions((Source(str(path)),), defaults={"max_tokens": 8}, templates=templates("Q: {q}"))
    found = validate(asked, PROFILE)
    assert found.first == {"model": "llama-8b", "max_tokens": 8, "prompt": "Q: a"}
    assert found.notes == ["`answer` is carried through, not sent"]
    named = ReadOptions((Source(str(path)),), defaults={"max_tokens": 8}, names=ColumnNames("q", "answer"))
    assert validate(named, PROFILE).notes == [], "columns that are the prompt and the id"


def test_a_resumed_run_has_the_same_template(tmp_path: Path) -> None:
    path, out = prompts(tmp_path, 3, topic="tea"), tmp_path / "out.jsonl"

    def asked(text: str) -> Any:
        return options(path, out=out, read={"templates": templates(text)})

    assert run(asked("{prompt} of {topic}")) is not None
    assert [record["input"] for record in records(out)] == [
        {"prompt": f"Say {place}", "topic": "tea"} for place in range(3)
    ]
    with pytest.raises(UsageError, match=r"template was .\{prompt\} of \{topic\}. and is .\{prompt\} on \{topic\}"):
        run(asked("{prompt} on {topic}"))
    (tmp_path / "t.txt").write_text("{prompt} of {topic}\n")  # the content counts, not where it is
    same = templates(None, template_file=str(tmp_path / "t.txt"))
    summary = run(options(path, out=out, read={"templates": same}))
    assert summary is not None
    assert (summary.resumed, summary.left) == (3, 0)


def test_an_empty_template_is_refused(tmp_path: Path) -> None:
    (file := tmp_path / "t").write_text("\n")
    for label, given in (("--template", ("", None)), (f"--template-file {file}", (None, str(file)))):
        with pytest.raises(UsageError, match=f"^{label}: is empty"):
            templates(given[0], template_file=given[1])


def test_options_exclude_each_other(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("{a}")
    with pytest.raises(UsageError, match="exclude each other"):
        templates("{a}", template_file=str(tmp_path / "t"))
    with pytest.raises(UsageError, match=r"--template-file .*none: cannot be read: No such file"):
        templates(None, template_file=str(tmp_path / "none"))
