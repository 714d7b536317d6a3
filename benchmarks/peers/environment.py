"""The peers' own environments, in a folder that Git does not see: their packages are none of ours."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FOLDER = ROOT / ".bench"
REQUIREMENTS = HERE / "requirements.txt"
PACKAGES = HERE / "package.json"


class PeerUnavailable(Exception):
    """A peer can't be installed or run, for the reason given."""


class Environments:
    """Made when first asked for, and kept until the versions change. What fails is not tried again."""

    def __init__(self) -> None:
        self._made: dict[str, Path | PeerUnavailable] = {}

    @property
    def python(self) -> Path:
        """The environment's Python."""
        return self._once("python", _make_python)

    @property
    def node(self) -> Path:
        """The folder with its packages."""
        return self._once("node", _make_node)

    def _once(self, name: str, make: Callable[[Path], Path]) -> Path:
        if name not in self._made:
            try:
                self._made[name] = make(FOLDER / name)
            except PeerUnavailable as error:
                self._made[name] = error
        made = self._made[name]
        if isinstance(made, PeerUnavailable):
            raise made
        return made


def _make_python(folder: Path) -> Path:
    program = folder / "bin" / "python"
    if not _is_current(folder, REQUIREMENTS):
        _ignore(FOLDER)
        venv.create(folder, clear=True, symlinks=True, with_pip=False)
        _run([sys.executable, "-m", "uv", "pip", "install", "-q", f"--python={program}", "-r", str(REQUIREMENTS)])
        _stamp(folder, REQUIREMENTS)
    return program


def _make_node(folder: Path) -> Path:
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise PeerUnavailable("Node.js is not here")
    if not _is_current(folder, PACKAGES):
        _ignore(FOLDER)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        shutil.copy(PACKAGES, folder)
        _run(["npm", "install", f"--prefix={folder}", "--no-audit", "--no-fund", "--silent"])
        _stamp(folder, PACKAGES)
    return folder


def _is_current(folder: Path, source: Path) -> bool:
    stamp = folder / "stamp"
    return stamp.exists() and stamp.read_text() == _digest(source)


def _stamp(folder: Path, source: Path) -> None:
    (folder / "stamp").write_text(_digest(source))


def _digest(source: Path) -> str:
    return hashlib.sha256(source.read_bytes() + sys.version.encode()).hexdigest()


def _ignore(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / ".gitignore").write_text("*\n")


def _run(command: Sequence[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = (done.stderr + done.stdout).strip().splitlines()
        raise PeerUnavailable(f"could not be installed: {lines[-1] if lines else done.returncode}")
