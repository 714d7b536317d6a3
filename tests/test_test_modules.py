"""Rules for the tests themselves: no module imports a test module, and every test asserts something.

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


# Shared helpers that fail a test, and one of Hypothesis.
ASSERTING = {"becomes_true", "passes", "wait_for", "run_python", "run_state_machine_as_test"}
PYTESTS_OWN = {"pytest.raises", "pytest.warns", "pytest.fail"}


def without_assertion(source: str) -> list[str]:
    """Return the tests that neither assert anything nor call a helper, of their own module or shared, that does."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    helpers = {each.name for each in functions if asserts(each, ASSERTING) and not each.name.startswith("test_")}
    return [each.name for each in functions if each.name.startswith("test_") and not asserts(each, ASSERTING | helpers)]


def asserts(function: ast.FunctionDef, helpers: set[str]) -> bool:
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            last = name.rpartition(".")[2]
            if name in PYTESTS_OWN or last in helpers or last.startswith("assert_"):
                return True
    return False


def test_every_test_asserts_something() -> None:
    found = {name_of(path): without_assertion(path.read_text()) for path in TESTS if path.name.startswith("test_")}
    assert {name: tests for name, tests in found.items() if tests} == {}


def test_the_test_finds_tests_that_only_do_not_raise() -> None:
    helper = "def check(x):\n    assert x\n\n"
    assert without_assertion("def test_it():\n    work()\n") == ["test_it"]
    assert without_assertion(helper + "class TestIt:\n    def test_it(self):\n        work()\n") == ["test_it"]
    assert without_assertion(helper + "def test_it():\n    check(work())\n") == []
    assert without_assertion("def test_it():\n    with pytest.raises(ValueError):\n        work()\n") == []
    assert without_assertion("def test_it():\n    stage.wait_for(work, 'it works')\n") == []
