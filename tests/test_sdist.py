"""The source distribution holds every file of the repository, so that its tests run from it as well."""

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.support.program import ROOT

# What the build adds: metadata.
MADE = {"PKG-INFO", "setup.cfg"}
BUILD = "from setuptools.build_meta import build_sdist; print(build_sdist('dist'))"


def tracked() -> set[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("this is a source distribution itself: there is no list of files to compare it with")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S607
    return {name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()}


def copy(names: set[str], folder: Path) -> None:
    """A clean checkout: what lies about in this one must make no difference."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((ROOT / name).read_bytes())


def test_it_holds_what_the_repository_holds(tmp_path: Path) -> None:
    names = tracked()
    copy(names, tmp_path)
    built = subprocess.run([sys.executable, "-c", BUILD], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    with tarfile.open(tmp_path / "dist" / built.stdout.split()[-1]) as archive:
        held = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    held = {name for name in held if ".egg-info/" not in name} - MADE
    assert held == names
