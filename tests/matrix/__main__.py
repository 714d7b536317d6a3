"""Run the suite on other Pythons and servers, one after the other, and print a table of the results.

python3 dev.py matrix                                   # all that this machine can run
python3 dev.py matrix --list                            # say what that is, and run nothing
python3 dev.py matrix --only trixie -- tests/events -x  # one system, and pytest's arguments

As root on a machine with debootstrap: Debian trixie and sid, each with its own PostgreSQL and Redis. Interpreters of
this machine are run as well, unless a Debian release has the same version of Python.
"""

# ruff: noqa: T201  (it talks to a terminal)

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.matrix.debian import Debian, missing_for_debian
from tests.matrix.interpreters import other_interpreters
from tests.matrix.system import MatrixError, System, Versions, cache_folder

# Each with the version of Python that it has.
RELEASES = {"trixie": "python3.13", "sid": "python3.14"}
# A process that has no tests left takes some of another: the slow ones stand together.
ALL_TESTS = (f"--numprocesses={max(4, os.cpu_count() or 1)}", "--dist=worksteal")
# pytest's last line, which has no frame with -q.
SUMMARY = re.compile(r"(=+ )?(?P<counts>(\d+ (passed|failed|error|skipped)|no tests ran).* in [\d.]+s.*?)( =+)?")


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    versions: Versions | None
    text: str
    minutes: float
    passed: bool


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="dev.py matrix", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="this system; may be given several times")
    parser.add_argument("--list", action="store_true", help="say what can be run, and run nothing")
    parser.add_argument("pytest", nargs="*", help="after --: pytest's arguments; none: every test")
    given = parser.parse_args(arguments)
    chosen = choose(available(), given.only)
    if not chosen:
        print("matrix: nothing to run")
        return 2
    print("matrix:", "can run" if given.list else "runs", ", ".join(system.name for system in chosen), flush=True)
    if given.list:
        return 0
    results = [run(system, given.pytest or ALL_TESTS) for system in chosen]
    print(table(results))
    return 0 if all(result.passed for result in results) else 1


def available() -> list[System]:
    """Return what this machine can run, and say what it lacks."""
    systems: list[System] = []
    missing = missing_for_debian()
    if missing is None:
        systems += [Debian(name) for name in RELEASES]
        print(f"matrix: debootstrap is there: {', '.join(RELEASES)}, kept in {cache_folder()}", flush=True)
    else:
        print(f"matrix: no Debian releases, since {missing}", flush=True)
    for interpreter in other_interpreters():
        print(f"matrix: {interpreter.program} is Python {interpreter.version}", flush=True)
        systems.append(interpreter)
    return systems


def choose(systems: Sequence[System], only: Sequence[str] | None) -> list[System]:
    """Return the systems that are named; if none is, all, but each version of Python only once."""
    if only is not None:
        unknown = sorted(set(only) - {system.name for system in systems})
        if unknown:
            print(f"matrix: this machine can't run {', '.join(unknown)}")
            return []
        return [system for system in systems if system.name in only]
    covered = {RELEASES[system.name] for system in systems if system.name in RELEASES}
    return [system for system in systems if system.name not in covered]


def run(system: System, arguments: Sequence[str]) -> Result:
    began_at = time.monotonic()
    versions: Versions | None = None
    try:
        system.prepare()
        versions = system.versions()
        print(f"matrix: {system.name}: {versions}", flush=True)
        code, text = _watch(system.command(arguments))
    except MatrixError as error:
        code, text = 1, f"not run: {error}"
    return Result(system.name, versions, text, (time.monotonic() - began_at) / 60, passed=code == 0)


def _watch(command: Sequence[str]) -> tuple[int, str]:
    """Run it with its output shown; return its exit code and the last summary of pytest."""
    summary = "no summary: see above"
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if (match := SUMMARY.fullmatch(line.rstrip())) is not None:
                summary = match["counts"]
    return process.returncode, summary


def table(results: Sequence[Result]) -> str:
    """Return the results as a table, one line each."""
    rows = [("system", "Python", "PostgreSQL", "Redis", "minutes", "", "result")]
    for result in results:
        versions = result.versions or Versions("", "", "")
        numbers = (versions.python, versions.postgres, versions.redis, f"{result.minutes:.1f}")
        rows.append((result.name, *numbers, "green" if result.passed else "RED", result.text))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
