"""Choose the tests that `python3 dev.py test --fast` runs: those that start no process and cause no fault.

A test that runs once on each database runs on SQLite only, and one that needs PostgreSQL is left out: each process
would have to set up a server first. The choice is made by folder, by file, by fixture and by what a test and its
fixtures call, never by how long a test took: it is the same on every machine.
"""

import inspect
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from tests.support import processes, program, servers

# Their tests start processes, break servers, build something, or try very many inputs.
FOLDERS = ("benchmarks", "chaos", "examples", "faults", "fuzz", "model")
FILES = (
    "test_compose.py", "test_dev.py", "test_docs.py", "test_sdist.py", "test_security.py", "test_servers.py",
    "admin/web/test_parameters.py", "inbox/test_inbox_database.py", "testing/test_prove.py",
)  # fmt: skip
# Fixtures that start workers and commands, that give a test a server of its own, to break, or that need PostgreSQL.
FIXTURES = ("make_stage", "own_redis", "own_server", "durable_redis", "postgres_url", "postgres_server")
# What starts a process when a test calls it.
STARTERS = (
    program.run, program.run_python, processes.Program, processes.Stage, servers.PostgresServer, servers.RedisServer,
    subprocess,
)  # fmt: skip


def is_left_out(path: Path, tests: Path) -> bool:
    """Return whether no test of this file or folder is fast."""
    parts = path.relative_to(tests).parts
    return parts[:1] != () and (parts[0] in FOLDERS or "/".join(parts) in FILES)


def is_fast(item: pytest.Item, tests: Path) -> bool:
    """Return whether a test starts no process, causes no fault, and does without PostgreSQL."""
    if is_left_out(item.path, tests):
        return False
    if not isinstance(item, pytest.Function):
        return True
    if hasattr(item, "callspec") and item.callspec.params.get("url") == "postgres":
        return False
    if set(FIXTURES).intersection(item.fixturenames):
        return False
    fixtures = [each.func for found in item._fixtureinfo.name2fixturedefs.values() for each in found]
    return not any(starts_process(function) for function in (item.function, *fixtures))


def starts_process(function: Callable[..., object]) -> bool:
    """Return whether a function names one of the starters, itself or through its module's functions and classes."""
    seen: set[object] = set()
    waiting: list[Any] = [inspect.unwrap(function)]
    while waiting:
        looked_at = waiting.pop()
        for name in _names(getattr(looked_at, "__code__", None)):
            found = looked_at.__globals__.get(name)
            if any(found is starter for starter in STARTERS) or (name == "fork" and "os" in looked_at.__globals__):
                return True
            if getattr(found, "__module__", None) == looked_at.__module__ and found not in seen:
                seen.add(found)
                waiting += vars(found).values() if inspect.isclass(found) else [found]
    return False


def _names(code: CodeType | None) -> Iterator[str]:
    """Yield the names that a function uses, those inside its own functions and lambdas included."""
    if code is not None:
        yield from code.co_names
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from _names(constant)
