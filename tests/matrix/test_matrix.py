"""The matrix is a command of its own; here only how it chooses, reports, and reads the machine's settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.matrix.__main__ import SUMMARY, Result, choose, table
from tests.matrix.machine_settings import local_paths, parse_pip_settings
from tests.matrix.system import Versions, cache_folder, copy_checkout
from tests.support.program import ROOT


@dataclass(frozen=True, slots=True)
class Named:
    """A system that is never run."""

    name: str

    def prepare(self) -> None: ...

    def versions(self) -> Versions:
        return Versions("3.13.5", "17.6", "8.0.2")

    def command(self, arguments: Sequence[str]) -> list[str]:
        return ["true", *arguments]


ALL = [Named("trixie"), Named("sid"), Named("python3.12"), Named("python3.13")]


def test_each_version_of_python_is_run_once_and_debian_comes_before_interpreters() -> None:
    assert [system.name for system in choose(ALL, None)] == ["trixie", "sid", "python3.12"]
    assert [system.name for system in choose(ALL[2:], None)] == ["python3.12", "python3.13"]


def test_only_what_is_named_is_run() -> None:
    assert [system.name for system in choose(ALL, ["python3.13"])] == ["python3.13"]


def test_a_system_that_the_machine_lacks_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert choose(ALL, ["trixie", "woody"]) == []
    assert "can't run woody" in capsys.readouterr().out


def test_the_table_has_a_line_for_each_system_with_its_versions_and_its_result() -> None:
    versions = Versions("3.13.5", "17.6", "8.0.2")
    results = [
        Result("trixie", versions, "12 passed in 3.00s", 1.25, passed=True),
        Result("sid", None, "not run: no network", 0.1, passed=False),
    ]
    _, first, second = table(results).splitlines()
    assert first.split() == ["trixie", "3.13.5", "17.6", "8.0.2", "1.2", "green", "12", "passed", "in", "3.00s"]
    assert second.split() == ["sid", "0.1", "RED", "not", "run:", "no", "network"]


@pytest.mark.parametrize("line", ["==== 2 failed, 7 passed in 3.10s ====", "2 failed, 7 passed in 3.10s"])
def test_the_last_line_of_pytest_is_recognised(line: str) -> None:
    match = SUMMARY.fullmatch(line)
    assert match is not None
    assert match["counts"] == "2 failed, 7 passed in 3.10s"


PIP = """
global.index-url='https://wheels.example.com/simple'
global.find-links='/opt/one /opt/two'
install.no-input='true'
:env:.find-links='/opt/three'
"""


def test_pip_is_told_in_the_chroot_what_it_is_told_outside_and_the_environment_wins() -> None:
    assert parse_pip_settings(PIP) == {
        "PIP_INDEX_URL": "https://wheels.example.com/simple",
        "PIP_FIND_LINKS": "/opt/three",
        "PIP_NO_INPUT": "true",
    }


def test_files_and_folders_that_pip_uses_are_found_and_an_index_with_the_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "index" / "simple").mkdir(parents=True)
    (tmp_path / "certificates").touch()
    settings = {
        "PIP_EXTRA_INDEX_URL": f"https://wheels.example.com/simple file://{tmp_path}/index/simple",
        "PIP_CERT": f"{tmp_path}/certificates",
        "PIP_FIND_LINKS": f"{tmp_path}/missing",
    }
    assert local_paths(settings) == [tmp_path / "certificates", tmp_path / "index"]


def test_systems_are_kept_in_the_cache_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "dramatiq-outbox" / "matrix"


def test_a_copy_has_the_files_of_the_checkout_and_keeps_only_its_environment(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is a source distribution: git lists no files here")
    for name in (".venv/python", "outbox/gone.py", "gone.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    copy_checkout(tmp_path)
    assert (tmp_path / "dev.py").read_bytes() == (ROOT / "dev.py").read_bytes()
    assert (tmp_path / ".venv/python").exists()
    assert not (tmp_path / "gone.py").exists()
    assert not (tmp_path / "outbox/gone.py").exists()
    assert not (tmp_path / ".git").exists()
