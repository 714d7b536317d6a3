"""The limits of files and functions: what doesn't fit on a screen is split."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.program import ROOT

MOST_LINES_OF_A_FILE = 400
# Without the signature and the docstring: the parameters of a public function are documented in full.
MOST_LINES_OF_A_FUNCTION = 50

FILES = sorted(path for folder in ("outbox", "jobs", "scheduler") for path in (ROOT / folder).rglob("*.py"))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def lines_of_body(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first, *others = function.body
    body = others if ast.get_docstring(function) is not None else [first, *others]
    return max(each.end_lineno or 0 for each in body) - body[0].lineno + 1 if body else 0


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_and_no_function_is_too_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MOST_LINES_OF_A_FILE
    assert {
        each.name: lines for each in functions(path) if (lines := lines_of_body(each)) > MOST_LINES_OF_A_FUNCTION
    } == {}
