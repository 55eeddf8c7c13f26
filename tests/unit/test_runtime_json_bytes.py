"""The JSON encoder and decoder: the same values with orjson and without it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from brimful.runtime import json_bytes


@pytest.fixture(params=["orjson", "standard library"])
def encode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param != "orjson":
        monkeypatch.setattr(json_bytes, "orjson", None)
    return json_bytes.encode


@pytest.fixture
def decode(encode: Any) -> Any:
    return json_bytes.decode


@pytest.mark.parametrize(
    "value",
    [
        {"text": "é \u2028 \x85 \U0001f600", "n": 1, "x": 0.1, "none": None, "list": [True, []]},
        {"text": "\ud800 é"},
        {"key \udfff": 1},
        {"seed": 2**80},
        '\x00\x1f\x7f"\\',
    ],
)
def test_what_json_can_say_comes_back_as_it_was(encode: Any, value: Any) -> None:
    data = encode(value)
    assert isinstance(data, bytes)
    assert json.loads(data.decode("utf-8")) == value


def test_text_outside_ascii_is_written_as_utf_8(encode: Any) -> None:
    assert encode({"a": "é"}) == '{"a":"é"}'.encode()


def test_keys_are_sorted_where_asked(encode: Any) -> None:
    assert encode({"b": 1, "a": {"d": 1, "c": 2}}, sort=True) == b'{"a":{"c":2,"d":1},"b":1}'
    assert encode({"b": "\ud800", "a": 2**80}, sort=True) == b'{"a":1208925819614629174706176,"b":"\\ud800"}'


def test_a_number_that_json_lacks_is_null(encode: Any) -> None:
    lacking = [float("nan"), float("inf"), -float("inf")]
    assert encode(lacking) == b"[null,null,null]"
    assert json.loads(encode([*lacking, "\ud800"])) == [None, None, None, "\ud800"]


def test_a_value_that_json_lacks_is_refused(encode: Any) -> None:
    with pytest.raises(TypeError):
        encode({"a": object()})


@pytest.mark.parametrize(
    "text",
    ['{"a": [1, 0.5, null, true, "\u00e9 \\ud800"]}', "[NaN, -Infinity]", '"\\udfff"', "18446744073709551615", "[[]]"],
)
def test_all_that_the_standard_library_reads_is_read(decode: Any, text: str) -> None:
    assert repr(decode(text)) == repr(decode(text.encode())) == repr(json.loads(text))


@pytest.mark.parametrize("text", ["", "{", "nul", "'a'", b"\xff"])
def test_what_is_no_json_is_refused(decode: Any, text: str | bytes) -> None:
    with pytest.raises(ValueError):
        decode(text)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 1000])
def test_commas_and_brackets_in_strings_are_no_values(chunk: int) -> None:
    document = {"a,[": ["[,{", '\\",[{', "\\\\", ',\\",', ""], ",": ",,,,[[[["}
    text = json.dumps(document).encode()
    assert json_bytes.count_values(text, 6, chunk=chunk) == 7
    assert json_bytes.count_values(text, 1000, chunk=chunk) > 7  # an upper bound is enough
