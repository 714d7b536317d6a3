"""Choose the tests that `python3 dev.py test --fast` runs: those that start no process and cause no fault.

The choice is made by folder, by file and by fixture, never by how long a test took: it is the same on every machine.
"""

from collections.abc import Iterable
from pathlib import Path

import pytest

# Their tests start processes, break servers, build something, or try very many inputs.
FOLDERS = ("benchmarks", "chaos", "examples", "faults", "fuzz", "model")
FILES = ("test_compose.py", "test_dev.py", "test_docs.py", "test_sdist.py", "test_security.py", "test_servers.py")
# What starts workers and commands, and what gives a test a server of its own, to break.
FIXTURES = ("make_stage", "own_redis", "own_server", "durable_redis")
MARKER = "processes"


def is_fast(item: pytest.Item, tests: Path) -> bool:
    """Return whether a test starts no process and causes no fault."""
    parts = item.path.relative_to(tests).parts
    if parts[0] in FOLDERS or (len(parts) == 1 and parts[0] in FILES):
        return False
    fixtures: Iterable[str] = getattr(item, "fixturenames", ())
    return not set(FIXTURES).intersection(fixtures) and item.get_closest_marker(MARKER) is None
