"""Rules for the tests themselves: a test module is never imported by another one.

What two test modules need stands in tests/support, in a conftest.py, or in a module beside them that holds no tests.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.program import ROOT

TESTS = sorted((ROOT / "tests").rglob("*.py"))


def imported_names(source: str) -> Iterator[str]:
    """Yield each dotted name that an import may take a module from."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not used here"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_test_modules(source: str) -> set[str]:
    return {name for name in imported_names(source) if name in TEST_MODULES}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


TEST_MODULES = {name_of(path) for path in TESTS if path.name.startswith("test_")}


def test_no_module_imports_a_test_module() -> None:
    found = {name_of(path): imported_test_modules(path.read_text()) for path in TESTS}
    assert {name: others for name, others in found.items() if others} == {}


def test_the_test_finds_every_way_to_import_one() -> None:
    for line in (
        "import tests.test_text",
        "from tests.test_text import anything",
        "from tests import test_text",
        "def f():\n    from tests.test_text import anything",
    ):
        assert imported_test_modules(line) == {"tests.test_text"}, line
    assert imported_test_modules("from tests.support.table import emit") == set()
