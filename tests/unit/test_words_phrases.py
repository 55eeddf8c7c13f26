"""Parts of messages: texts cut to a length, texts of others, and enumerations."""

from __future__ import annotations

from brimful.words.phrases import cut, enumerated, printable


def test_a_text_is_cut_to_its_length_ellipsis_included() -> None:
    assert [cut(text, 3) for text in ("", "abc", "abcd")] == ["", "abc", "ab…"]


def test_enumerations() -> None:
    assert [enumerated(list(words)) for words in ("", "a", "ab", "abc")] == ["none", "a", "a and b", "a, b and c"]


def test_control_characters_of_others_are_not_printed() -> None:
    assert [printable(text) for text in ("é b", "a\x1b[2J\n", "\x9b\u202e")] == ["é b", "a?[2J?", "??"]
