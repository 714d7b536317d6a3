"""Choose the tests that `python3 dev.py test --fast` runs: those that start no process and cause no fault.

A test that runs once on each database runs on SQLite only, and one that needs PostgreSQL is left out: each process
would have to set up a server first. The choice is made by folder, by file, by fixture and by what a test calls, never
by how long a test took: it is the same on every machine.
"""

import inspect
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import program, servers

# Their tests start processes, break servers, build something, or try very many inputs.
FOLDERS = ("benchmarks", "chaos", "examples", "faults", "fuzz", "model")
FILES = ("test_compose.py", "test_dev.py", "test_docs.py", "test_sdist.py", "test_security.py", "test_servers.py")
# Fixtures that start workers and commands, that give a test a server of its own, to break, or that need PostgreSQL.
FIXTURES = ("make_stage", "own_redis", "own_server", "durable_redis", "postgres_url", "postgres_server")
# What starts a process when a test calls it.
STARTERS = (program.run, program.run_python, servers.PostgresServer, servers.RedisServer, subprocess)


def is_fast(item: pytest.Item, tests: Path) -> bool:
    """Return whether a test starts no process, causes no fault, and does without PostgreSQL."""
    parts = item.path.relative_to(tests).parts
    if parts[0] in FOLDERS or (len(parts) == 1 and parts[0] in FILES):
        return False
    if not isinstance(item, pytest.Function):
        return True
    if hasattr(item, "callspec") and item.callspec.params.get("url") == "postgres":
        return False
    return not set(FIXTURES).intersection(item.fixturenames) and not starts_process(item.function)


def starts_process(function: Callable[..., object]) -> bool:
    """Return whether a function names one of the starters, itself or through the functions of its module."""
    seen: set[object] = set()
    waiting: list[Any] = [inspect.unwrap(function)]
    while waiting:
        looked_at = waiting.pop()
        seen.add(looked_at)
        for name in looked_at.__code__.co_names:
            found = looked_at.__globals__.get(name)
            if any(found is starter for starter in STARTERS):
                return True
            if inspect.isfunction(found) and found.__module__ == looked_at.__module__ and found not in seen:
                waiting.append(found)
    return False
