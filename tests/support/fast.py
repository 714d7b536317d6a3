"""Choose the tests that `python3 dev.py test --fast` runs: those that start no process and cause no fault.

A test that runs once on each database runs on SQLite only. The choice is made by folder, by file and by fixture, never
by how long a test took: it is the same on every machine.
"""

from pathlib import Path

import pytest

# Their tests start processes, break servers, build something, or try very many inputs.
FOLDERS = ("benchmarks", "chaos", "examples", "faults", "fuzz", "model")
FILES = ("test_compose.py", "test_dev.py", "test_docs.py", "test_sdist.py", "test_security.py", "test_servers.py")
# What starts workers and commands, and what gives a test a server of its own, to break.
FIXTURES = ("make_stage", "own_redis", "own_server", "durable_redis")


def is_fast(item: pytest.Item, tests: Path) -> bool:
    """Return whether a test starts no process, causes no fault, and does not repeat on PostgreSQL what SQLite shows."""
    parts = item.path.relative_to(tests).parts
    if parts[0] in FOLDERS or (len(parts) == 1 and parts[0] in FILES):
        return False
    if isinstance(item, pytest.Function):
        repeats = hasattr(item, "callspec") and item.callspec.params.get("url") == "postgres"
        return not repeats and not set(FIXTURES).intersection(item.fixturenames)
    return True
