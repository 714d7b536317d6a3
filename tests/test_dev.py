"""The plain test command works on a bare machine: what needs more is run by those who ask for it."""

import re
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.conftest import APART
from tests.support.program import ROOT, run

COLLECTING = (sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider")


def test_the_plain_test_command_leaves_alone_what_a_bare_machine_lacks() -> None:
    others = [path for path in (ROOT / "tests").iterdir() if path.name not in (*APART, "conftest.py", "__init__.py")]
    plain = run(*COLLECTING, "tests", *(f"--ignore={path}" for path in others))
    assert "no tests collected" in plain.stdout


@pytest.mark.parametrize("folder", APART)
def test_what_stands_apart_is_collected_if_asked_for(folder: str) -> None:
    assert f"tests/{folder}/test_" in run(*COLLECTING, f"tests/{folder}").stdout


def test_each_has_a_command_that_is_documented_and_that_ci_runs() -> None:
    for folder in APART:
        command = f"python3 dev.py test --{folder}"
        assert command in (ROOT / "CONTRIBUTING.md").read_text()
        assert re.search(rf"(dev\.py test |apart\+?=\().*--{folder}\b", (ROOT / ".ci" / "run").read_text())
        assert f'"{folder}"' in (ROOT / "dev.py").read_text() or f'"--{folder}"' in (ROOT / "dev.py").read_text()


def test_tests_in_a_browser_are_collected_and_checked_without_what_drives_it() -> None:
    files = sorted((ROOT / "tests" / "browser").glob("*.py"))
    assert len(files) > 3
    for file in files:
        assert "import playwright" not in file.read_text()
        assert "from playwright" not in file.read_text()


def test_ci_runs_the_plain_tests() -> None:
    assert "\npython3 dev.py test\n" in (ROOT / ".ci" / "run").read_text()


def test_the_oldest_versions_are_tested_and_are_those_that_the_project_allows() -> None:
    assert "\npython3 dev.py test --oldest\n" in (ROOT / ".ci" / "run").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    lock = (ROOT / "requirements-oldest.lock").read_text()
    for requirement in map(Requirement, needed):
        found = re.search(rf"^{re.escape(requirement.name)}==(\S+)", lock, re.MULTILINE)
        assert found is not None, requirement.name
        (floor,) = (each.version for each in requirement.specifier if each.operator == ">=")
        bound = Version(floor).release
        assert Version(found[1]).release[: len(bound)] == bound
