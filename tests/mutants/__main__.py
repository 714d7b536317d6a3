"""The mutation check: break one thing at a time, in a copy of the tree, and see that the tests for it turn red.

python3 dev.py mutants                  # all; how long it takes is told at the end
python3 dev.py mutants fence lease      # those whose names contain one of the words
"""

# ruff: noqa: T201  (it talks to a terminal)

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from xml.etree import ElementTree as ET

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import ROOT, Mutant
from tests.support.servers import POSTGRES_VARIABLE, REDIS_VARIABLE, find_postgres, find_redis
from tests.support.thoroughness import UNSHRUNK

LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", ".*_cache", "__pycache__", "node_modules", "build", "*.egg-info")
PATIENCE_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of the tree, for one mutant at a time, and servers that are not started anew for each."""

    folder: Path
    servers: dict[str, str]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="dev.py mutants", description="Break one thing at a time; tests must notice.")
    parser.add_argument("words", nargs="*", help="parts of names; none: all")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once (2)")
    parser.add_argument("--list", action="store_true", help="name them, and run nothing")
    given = parser.parse_args(arguments)
    chosen = [mutant for mutant in MUTANTS if _is_meant(mutant, given.words)]
    if given.list:
        print(*(f"{mutant.name:<32} {mutant.file}" for mutant in chosen), sep="\n")
        return 0
    began_at = time.monotonic()
    with _copies(given.jobs) as copies:
        if not _is_green_as_it_is(copies, chosen):
            return 1
        with ThreadPoolExecutor(given.jobs) as threads:
            survived = [name for name in threads.map(lambda mutant: _try(copies, mutant), chosen) if name is not None]
    print(f"{len(chosen)} mutants, {len(survived)} survived, {time.monotonic() - began_at:.0f} s")
    if survived:
        print("no test noticed, or not all that should:", *survived, sep="\n  ")
    return 1 if survived or not chosen else 0


def _is_meant(mutant: Mutant, words: Sequence[str]) -> bool:
    return not words or any(word in mutant.name for word in words)


@contextmanager
def _copies(count: int) -> Iterator[SimpleQueue[Copy]]:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="outbox-mutants-"))
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(count):
            copy = Path(folder) / str(number)
            shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
            postgres, redis = stack.enter_context(find_postgres()), stack.enter_context(find_redis())
            copies.put(Copy(copy, {POSTGRES_VARIABLE: postgres.url, REDIS_VARIABLE: redis.url}))
        yield copies


def _is_green_as_it_is(copies: SimpleQueue[Copy], chosen: list[Mutant]) -> bool:
    """Run the tests without any mutant, a part of them in each copy. A test that is red already notices nothing."""
    tests = sorted({test for mutant in chosen for test in mutant.tests})

    def run(part: list[str]) -> tuple[list[str], float, str]:
        copy = copies.get()
        try:
            return _run(copy, part) if part else ([], 0.0, "")
        finally:
            copies.put(copy)

    count = copies.qsize()
    with ThreadPoolExecutor(count) as threads:
        runs = list(threads.map(run, [tests[number::count] for number in range(count)]))
    red = [name for names, _, _ in runs for name in names]
    print(f"as it is: {len(red)} of {len(tests)} red, {max(seconds for _, seconds, _ in runs):.0f} s", flush=True)
    if red:
        print(*(said for names, _, said in runs if names), sep="\n")
    return red == []


def _try(copies: SimpleQueue[Copy], mutant: Mutant) -> str | None:
    """Its name, if it survived."""
    copy = copies.get()
    try:
        if gone := mutant.misplaced(copy.folder):
            print(f"GONE      {mutant.name}", *gone, sep="\n              not there exactly once: ", flush=True)
            return mutant.name
        with mutant.applied(copy.folder):
            red, seconds, said = _run(copy, mutant.tests)
    finally:
        copies.put(copy)
    unmoved = [test for test in mutant.tests if not any(_is_of(name, test) for name in red)]
    print(f"{'SURVIVED' if unmoved else 'killed':<9} {mutant.name}, {seconds:.0f} s", flush=True)
    print(*(f"              red: {name}" for name in red), sep="\n", flush=True)
    if unmoved:
        print(*(f"          NOT red: {test}" for test in unmoved), said, sep="\n", flush=True)
    return mutant.name if unmoved else None


def _run(copy: Copy, tests: Sequence[str]) -> tuple[list[str], float, str]:
    """The tests that turned red, how long it took, and what pytest said at the end."""
    report = copy.folder / "report.xml"
    report.unlink(missing_ok=True)
    # The copy comes before what is installed, in this process and in every one that the tests start.
    environment = os.environ | copy.servers | {UNSHRUNK: "1"}
    environment |= {"PYTHONPATH": str(copy.folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider", f"--junitxml={report}"]
    began_at = time.monotonic()
    try:
        done = subprocess.run(
            [*command, *tests], cwd=copy.folder, env=environment, capture_output=True, text=True, check=False,
            timeout=PATIENCE_SECONDS,
        )  # fmt: skip
        said = done.stdout[-2_000:] + done.stderr[-2_000:]
        if done.returncode < 0:  # a signal has ended it, such as a segmentation fault: every test counts as red
            return list(tests), time.monotonic() - began_at, said
    except subprocess.TimeoutExpired:
        said = f"not over after {PATIENCE_SECONDS} s"
    seconds = time.monotonic() - began_at
    if not report.exists():
        return ["(no report)"], seconds, said
    cases = ET.parse(report).iter("testcase")  # noqa: S314  (pytest wrote it, a moment ago)
    red = [_name(case) for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return red, seconds, said


def _name(case: ET.Element) -> str:
    """`tests.delivery.test_claim.TestTheLease` and a test's name, as pytest takes them."""
    parts = case.get("classname", "").split(".")
    depth = next((number for number, part in enumerate(parts, 1) if part.startswith("test_")), len(parts))
    return "::".join(["/".join(parts[:depth]) + ".py", *parts[depth:], case.get("name", "")])


def _is_of(name: str, test: str) -> bool:
    """Whether a test is one of those that a file, a class or a test without its parameters stands for."""
    return name == test or name.startswith((f"{test}::", f"{test}[", f"{test}/"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
