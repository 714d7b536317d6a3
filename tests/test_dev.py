"""The plain test command works on a bare machine: what needs more is run by those who ask for it."""

import json
import os
import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import dev
from tests.conftest import APART
from tests.support.fast import FILES, FOLDERS
from tests.support.program import BIN, ROOT, run

COLLECTING = (sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider")


def test_the_plain_test_command_leaves_alone_what_a_bare_machine_lacks() -> None:
    others = [path for path in (ROOT / "tests").iterdir() if path.name not in (*APART, "conftest.py", "__init__.py")]
    plain = run(*COLLECTING, "tests", *(f"--ignore={path}" for path in others))
    assert "no tests collected" in plain.stdout


def test_what_stands_apart_is_collected_if_asked_for() -> None:
    collected = run(*COLLECTING, *(f"tests/{folder}" for folder in APART)).stdout
    for folder in APART:
        assert f"tests/{folder}/test_" in collected
    assert "tests/events/" not in collected


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
    assert re.search(r"^\s*python3 dev\.py test( \|\||$)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)


def test_the_oldest_versions_are_tested_and_are_those_that_the_project_allows() -> None:
    assert re.search(r"^\s*python3 dev\.py test --oldest( \|\||$)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
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


def test_fast_leaves_out_processes_and_faults_and_keeps_the_rest() -> None:
    chosen = run(
        *COLLECTING, "--fast", "tests/faults", "tests/notify", "tests/telemetry/test_process_reports.py"
    ).stdout
    assert "tests/faults/" not in chosen
    assert "test_counts_of_workers_add_up_exactly_when_they_have_stopped" not in chosen
    assert "tests/notify/test_timer.py::" in chosen
    assert "[sqlite" in chosen
    assert "[postgres" not in chosen
    assert "test_has_no_connection_left_open_by_the_reporter" not in chosen  # it needs PostgreSQL
    assert "deselected" in chosen


def test_fast_names_folders_and_files_that_exist_and_is_documented() -> None:
    for name in (*FOLDERS, *FILES):
        assert (ROOT / "tests" / name).exists(), name
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert "python3 dev.py test --fast" in text
    for folder in FOLDERS:
        assert f"`tests/{folder}`" in text


def test_commands_run_with_compiled_modules_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(dev, "set_up", lambda: None)
    monkeypatch.setitem(dev.COMMANDS, "check", lambda _: seen.append("PYTHONDONTWRITEBYTECODE" in os.environ))
    dev.main("check")
    assert seen == [False]


def test_uv_is_told_what_pip_is_of_indexes_and_certificates_and_the_environment_wins() -> None:
    listed = """:env:.find-links='/wheels'
:env:.timeout='180'
global.cert='/certificates.pem'
global.extra-index-url='file:///one/simple\\nfile:///two/simple'
global.find-links='/others /more'
"""
    assert dev.uv_settings(listed) == {
        "SSL_CERT_FILE": "/certificates.pem",
        "UV_FIND_LINKS": "/wheels",
        "UV_INDEX": "file:///one/simple file:///two/simple",
    }
    assert dev.uv_settings("") == {}


def test_the_lock_pins_uv_with_hashes_as_dev_reads_it() -> None:
    pinned = dev.PINNED_UV.search(dev.LOCK.read_text())
    assert pinned is not None
    first, *hashes = (line.strip(" \\") for line in pinned[0].splitlines())
    assert re.fullmatch(r"uv==[\d.]+", first)
    assert len(hashes) > 10
    assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in hashes)


def test_every_command_is_documented_for_contributors() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for name in dev.COMMANDS:
        assert f"python3 dev.py {name}" in text, name


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_has_the_form_that_github_reads_and_pins_every_action_by_commit(path: Path) -> None:
    checked = run(BIN / "check-jsonschema", "--builtin-schema", "vendor.github-workflows", path)
    assert checked.returncode == 0, checked.stdout
    used = re.findall(r"uses: *(.+)", path.read_text())
    assert used
    for action in used:
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


def test_workflows_run_the_commands_that_contributors_run_on_every_version_that_we_claim() -> None:
    tests, release = ((ROOT / ".github" / "workflows" / f"{name}.yml").read_text() for name in ("test", "release"))
    for command in ("python3 dev.py test\n", "python3 dev.py build\n"):
        assert f"run: {command}" in tests
        assert f"run: {command}" in release
    assert ".ci/run" in tests
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    claimed = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert f"python: {json.dumps(claimed)}" in tests


def test_a_release_is_published_without_a_token_and_with_attestations() -> None:
    release = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert "secrets." not in release
    assert release.count("id-token: write") == 1
    assert "attestations: true" in release
