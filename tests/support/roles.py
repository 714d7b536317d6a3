"""PostgreSQL roles for tests, with the rights that docs/how-to/permissions.md grants."""

import os
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import peewee
import psycopg
import pytest

from outbox.core import Outbox
from tests.support.program import ROOT

PAGE = (ROOT / "docs" / "how-to" / "permissions.md").read_text()
BLOCKS = re.findall(r"^```sql\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
GRANTS = "\n".join(BLOCKS)
FOR_EMITTING = BLOCKS[0]
ROLES = ("app", "worker", "viewer", "watcher", "auditor")

As = Callable[[str], Outbox]


def role(name: str) -> str:
    """Roles belong to the server, which other tests may be using."""
    return f"outbox_test_{name}_{os.getpid()}"


def as_role(url: str, name: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}options={quote(f'-c role={role(name)}')}"


def grant(connection: psycopg.Connection[Any], statements: str) -> None:
    for name in ROLES:
        statements = re.sub(rf"\bTO {name};", f"TO {role(name)};", statements)
    connection.execute(statements)


def refused(call: Callable[[], object]) -> bool:
    with pytest.raises(peewee.ProgrammingError, match="permission denied"):
        call()
    return True
