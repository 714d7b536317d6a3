"""The plain test command works on a bare machine: what needs a browser is for those who ask for it."""

import sys

from tests.program import ROOT, run

EVERYTHING_ELSE = ("--ignore-glob=tests/[!b]*", "--ignore=tests/benchmarks")


def test_the_plain_test_command_leaves_the_browser_alone() -> None:
    collecting = (sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider")
    plain = run(*collecting, "tests", *EVERYTHING_ELSE)
    assert "no tests collected" in plain.stdout
    asked = run(*collecting, "tests/browser")
    assert "tests/browser/test_story.py::" in asked.stdout


def test_tests_in_a_browser_are_collected_and_checked_without_what_drives_it() -> None:
    files = sorted((ROOT / "tests" / "browser").glob("*.py"))
    assert len(files) > 3
    for file in files:
        assert "import playwright" not in file.read_text()
        assert "from playwright" not in file.read_text()


def test_ci_runs_both() -> None:
    commands = (ROOT / ".ci" / "run").read_text()
    assert "\npython3 dev.py test\npython3 dev.py test --browser\n" in commands
