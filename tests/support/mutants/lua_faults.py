"""Faults of a Lua script, found in its words. It relies on one statement to a line."""

from __future__ import annotations

import re

from support.mutants.fault import Edit, one_more

_WORD = re.compile(
    r"""(?P<comment>--[^\n]*)|(?P<text>'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*")
    |(?P<number>(?<![\w.])\d+(?:\.\d+)?(?:e\d+)?)|(?P<name>[A-Za-z_]\w*)
    |(?P<sign>\.\.\.?|==|~=|<=|>=|[-+*/%^\#<>=(){}\[\],;:.])""",
    re.VERBOSE,
)
_COMPARISONS = {
    "<": ("<=", ">="),
    "<=": ("<", ">"),
    ">": (">=", "<="),
    ">=": (">", "<"),
    "==": ("~=",),
    "~=": ("==",),
}
_ARITHMETIC = {"+": "-", "-": "+", "*": "/", "/": "*", "%": "*", "^": "*"}
_WORDS = {
    "and": ("or", "and/or"),
    "or": ("and", "and/or"),
    "true": ("false", "constant"),
    "false": ("true", "constant"),
}
_STATEMENT = (
    r"(?:break|return(?:[ \t][^\n]*)?|[A-Za-z_][\w.:\[\]'#+ ]*(?:\([^\n]*\)|(?:,\s*[\w.\[\]'#+ ]+?)*\s=\s[^\n]+))"
)
_LINE = re.compile(rf"^(?P<indent>[ \t]*)(?P<statement>{_STATEMENT})[ \t]*(?:--[^\n]*)?$", re.MULTILINE)
_INLINE = re.compile(rf"\b(?:then|do|else) (?P<statement>{_STATEMENT}) (?:end|else)\b[^\n]*$", re.MULTILINE)
_CONDITION = re.compile(r"\b(?:if|elseif|while) (?P<condition>[^\n]*?) (?:then|do)\b")
_RETURN = re.compile(r"\breturn (?P<value>[^\n]+?)(?= end\b| else\b|[ \t]*--|[ \t]*$)", re.MULTILINE)
_OPEN_END = re.compile(r"(?:[,+*/=-]|\.\.| or| and)$")
"""The statement goes on in the next line."""
_KEYWORDS = ("local", "if", "for", "while", "repeat", "until", "function", "end", "else", "elseif")


def lua_edits(source: bytes) -> list[Edit]:
    text = source.decode("latin-1")  # so that places are those of the bytes
    edits: list[Edit] = []
    before = ""
    for word in _WORD.finditer(text):
        found = word[0]
        if word.lastgroup in ("comment", "text"):
            before = before if word.lastgroup == "comment" else found
            continue
        place = word.start(), word.end()
        if word.lastgroup == "number":
            edits.append(Edit(*place, _one_more(found), "constant"))
        elif found in _WORDS:
            edits.append(Edit(*place, *_WORDS[found]))
        elif found == "not":
            edits.append(Edit(*place, "", "not"))
        elif found in _COMPARISONS:
            edits += [Edit(*place, other, "comparison") for other in _COMPARISONS[found]]
        elif found in _ARITHMETIC and re.search(r"[\w)\]}'\"]$", before) and before not in ("return", "and", "or"):
            edits.append(Edit(*place, _ARITHMETIC[found], "operator"))
        before = found
    bare = _without_comments(text)
    edits += [edit for pattern in (_LINE, _INLINE) for edit in _dropped(pattern, bare)]
    for match in _CONDITION.finditer(bare):
        if not re.search(r"[<>=]|~=|\b(?:and|or|not)\b", match["condition"]):
            edits.append(Edit(*match.span("condition"), f"not ({match['condition']})", "not"))
    for match in _RETURN.finditer(bare):
        value = match["value"]
        if value not in ("nil", "true", "false", "end") and _balanced(value) and not _OPEN_END.search(value):
            edits.append(Edit(*match.span("value"), "nil", "return value"))
    return edits


def _without_comments(text: str) -> str:
    return re.sub(r"--[^\n]*", lambda comment: " " * len(comment[0]), text)


def _dropped(pattern: re.Pattern[str], text: str) -> list[Edit]:
    edits = []
    for match in pattern.finditer(text):
        statement = match["statement"]
        first = statement.split(maxsplit=1)[0]
        if first not in _KEYWORDS and _balanced(statement) and not _OPEN_END.search(statement):
            edits.append(Edit(*match.span("statement"), "", "line dropped"))
    return edits


def _balanced(text: str) -> bool:
    depth = 0
    for word in _WORD.finditer(text):
        if word.lastgroup == "sign":
            depth += (word[0] in "({[") - (word[0] in ")}]")
        elif word[0] in ("function", "if", "for", "while", "do"):
            return False
        if depth < 0:
            return False
    return depth == 0


def _one_more(number: str) -> str:
    return str(one_more(int(number))) if number.isdigit() else f"{one_more(float(number)):g}"
