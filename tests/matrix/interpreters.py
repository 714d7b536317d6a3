"""Other Pythons that are on this machine: on the PATH, or among those that pyenv and uv have installed."""

import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.matrix.system import Versions, cache_folder, copy_checkout, output_of
from tests.support.servers import ServerError, postgres_programs, redis_program

MINOR_VERSIONS = (11, 12, 13, 14)
# pip, since dev.py makes the environment with it.
PROBE = "import sys, pip; print('.'.join(map(str, sys.version_info[:3])))"


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python of this machine, with the servers of this machine."""

    program: Path
    version: str

    @property
    def name(self) -> str:
        return "python" + minor_of(self.version)

    @property
    def checkout(self) -> Path:
        return cache_folder() / self.name / "checkout"

    def prepare(self) -> None:
        copy_checkout(self.checkout)

    def versions(self) -> Versions:
        try:
            postgres = _number_in(output_of(str(postgres_programs() / "postgres"), "--version"))
            redis = _number_in(output_of(str(redis_program()), "--version"))
        except ServerError as error:
            return Versions(self.version, str(error), "")
        return Versions(self.version, postgres, redis)

    def command(self, arguments: Sequence[str]) -> list[str]:
        return [str(self.program), str(self.checkout / "dev.py"), "test", *arguments]


def minor_of(version: str) -> str:
    """Return "3.12" for "3.12.1"."""
    return ".".join(version.split(".")[:2])


def other_interpreters() -> list[Interpreter]:
    """Return the newest interpreter of each version that we support, this one's own version left out."""
    found: dict[str, Interpreter] = {}
    for minor in MINOR_VERSIONS:
        if minor == sys.version_info.minor:
            continue
        versions = [(output_of(str(program), "-c", PROBE), program) for program in _candidates(f"python3.{minor}")]
        working = [Interpreter(program, version) for version, program in versions if version]
        if working:
            found[working[0].name] = working[0]
    return list(found.values())


def _candidates(program: str) -> Iterator[Path]:
    """Yield where a program of this name may be; one on the PATH comes first."""
    on_path = shutil.which(program)
    if on_path is not None:
        yield Path(on_path)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    uv = Path.home() / ".local/share/uv/python"
    for folder in (pyenv, uv):
        yield from sorted(folder.glob(f"*/bin/{program}"), reverse=True)


def _number_in(text: str) -> str:
    match = re.search(r"\d+\.\d+(\.\d+)?", text)
    return "?" if match is None else match[0]
