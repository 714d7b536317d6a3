"""What the matrix runs the suite on: a Python with its servers, and a copy of the checkout for it."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.support.program import ROOT


@dataclass(frozen=True, slots=True)
class Versions:
    """What a system has, as it says so itself: a Python, a PostgreSQL and a Redis."""

    python: str
    postgres: str
    redis: str


class System(Protocol):
    """A Python with its servers. Nothing is made before `prepare`."""

    @property
    def name(self) -> str: ...

    def prepare(self) -> None:
        """Make or update the system and its copy of the checkout. Raises MatrixError."""

    def versions(self) -> Versions: ...

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Return the command that runs `dev.py test` with these arguments on the copy."""


class MatrixError(Exception):
    """A system can't be set up; the text says why."""


def cache_folder() -> Path:
    """Return the folder where systems are kept between runs: outside the checkout, in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "dramatiq-outbox" / "matrix"


def copy_checkout(folder: Path) -> None:
    """Bring a copy of the checkout up to date, without what git ignores. The copy keeps its own .venv."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.name.startswith(".venv"):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    for name in _files():
        copied = folder / name
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copied, follow_symlinks=False)


def _files() -> list[str]:
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        raise MatrixError(f"git can't list the files of {ROOT}: {listed.stderr.strip()}")
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def output_of(*command: str) -> str:
    """Return what a command prints, or "" if it fails or does not exist."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def run_or_fail(*command: str, environment: dict[str, str] | None = None) -> None:
    """Run a command of the set-up with its output shown."""
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise MatrixError(f"{' '.join(command[:4])} … ended with {done.returncode}; its output is above")
