"""Faults of a Python module, found in its syntax tree.

Left out is what no test should hold: annotations, decorators, docstrings, texts of messages, and lines of the log.
"""

from __future__ import annotations

import ast
import re

from support.mutants.fault import Edit, one_more

_COMPARISONS: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: (r"<", ("<=", ">=")),
    ast.LtE: (r"<=", ("<", ">")),
    ast.Gt: (r">", (">=", "<=")),
    ast.GtE: (r">=", (">", "<")),
    ast.Eq: (r"==", ("!=",)),
    ast.NotEq: (r"!=", ("==",)),
    ast.Is: (r"is", ("is not",)),
    ast.IsNot: (r"is\s+not", ("is",)),
    ast.In: (r"in", ("not in",)),
    ast.NotIn: (r"not\s+in", ("in",)),
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: (r"\+", "-"),
    ast.Sub: (r"-", "+"),
    ast.Mult: (r"\*", "/"),
    ast.Div: (r"/", "*"),
    ast.FloorDiv: (r"//", "*"),
    ast.Mod: (r"%", "*"),
    ast.Pow: (r"\*\*", "*"),
}
_SILENT_KEYWORDS = ("strict", "exc_info")
"""Keyword arguments whose constants only guard against mistakes, or concern the log."""


def python_edits(source: bytes) -> list[Edit]:
    finder = _Finder(source)
    finder.visit(ast.parse(source))
    return finder.edits


class _Finder(ast.NodeVisitor):
    def __init__(self, source: bytes) -> None:
        self.edits: list[Edit] = []
        self._source = source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    # what has no faults

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """A text. Before Python 3.12 the places in it are not known either."""

    def visit_Import(self, node: ast.Import) -> None: ...

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None: ...

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for part in (*node.args.defaults, *node.args.kw_defaults, *node.body):
            if part is not None:
                self.visit(part)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in node.body:
            self.visit(part)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._drop(node)

    def visit_Assert(self, node: ast.Assert) -> None: ...

    # operators and constants

    def visit_Compare(self, node: ast.Compare) -> None:
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            pattern, others = _COMPARISONS[type(operator)]
            for other in others:
                self._replace_between(left, right, pattern, other, "comparison")
            left = right
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        pattern, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._replace_between(left, right, pattern, other, "and/or")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in _ARITHMETIC and not _is_text(node.left) and not _is_text(node.right):
            self._replace_between(node.left, node.right, *_ARITHMETIC[type(node.op)], "operator")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._drop(node)
        self.visit(node.value)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            word = re.match(rb"not\s*", self._source[self._start(node) :])
            assert word
            self.edits.append(Edit(self._start(node), self._start(node) + word.end(), "", "not"))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replace(node, str(not node.value), "constant")
        elif isinstance(node.value, int | float):
            self._replace(node, repr(one_more(node.value)), "constant")

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg not in _SILENT_KEYWORDS:
            self.visit(node.value)

    # statements

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self._turn(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self._turn(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._turn(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._turn(test)
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        value = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(value, ast.Call) and not _is_log(value):
            self._drop(node)
            self.generic_visit(node)
        elif isinstance(value, ast.Yield | ast.YieldFrom):
            self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._drop(node)
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not isinstance(node.value, ast.Constant):
            self._replace(node.value, "None", "return value")
            self.visit(node.value)
        elif node.value is not None:
            self.visit(node.value)

    def visit_Break(self, node: ast.Break) -> None:
        self._replace(node, "continue", "jump")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replace(node, "break", "jump")

    # places

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._lines[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._lines[node.end_lineno - 1] + node.end_col_offset

    def _replace(self, node: ast.expr | ast.stmt, text: str, kind: str) -> None:
        self.edits.append(Edit(self._start(node), self._end(node), text, kind))

    def _drop(self, node: ast.stmt) -> None:
        self._replace(node, "pass", "line dropped")

    def _turn(self, test: ast.expr) -> None:
        """A condition that has no operator of its own to change."""
        if isinstance(test, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
            text = self._source[self._start(test) : self._end(test)].decode()
            self._replace(test, f"not ({text})", "not")

    def _replace_between(self, left: ast.expr, right: ast.expr, pattern: str, text: str, kind: str) -> None:
        start, end = self._end(left), self._start(right)
        between = re.sub(rb"#[^\n]*", lambda comment: b" " * len(comment[0]), self._source[start:end])
        found = re.search(rf"(?<![\w<>=!*/]){pattern}(?![\w<>=!*/])".encode(), between)
        assert found, self._source[start:end]
        self.edits.append(Edit(start + found.start(), start + found.end(), text, kind))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_log(call: ast.Call) -> bool:
    return (
        isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name) and call.func.value.id == "log"
    )
