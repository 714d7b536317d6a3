"""The names of the tables: one object, from which every statement, model and message takes them.

OUTBOX_SCHEMA and OUTBOX_TABLE_PREFIX determine them. Two outboxes with different prefixes can share a PostgreSQL schema
or an SQLite file, so the names of indexes and constraints have the prefix too. With the default prefix all names are
the same as before these settings existed. That is why the inbox's table is then called `inbox`, without the prefix.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

DEFAULT_PREFIX = "outbox_"

# PostgreSQL truncates longer names. The longest name is the prefix and `unique_event_type_idempotency_key`.
NAME_LENGTH = 63
PREFIX_LENGTH = NAME_LENGTH - len("unique_event_type_idempotency_key")

# The tables. The templates of statements call them `{event_table}`, `{history_table}` and so on.
KINDS = (
    "event", "inbox", "process", "total", "minute", "audit", "history", "destination", "control", "audience",
    "periodic", "waiting", "audit_batch", "attempt",
)  # fmt: skip


@dataclass(frozen=True)
class Tables:
    """The schema of the tables, and the prefix of their names.

    Without a schema, the connection's search path decides. Each property is a table's name in SQL, with the schema;
    `name` returns the name alone.
    """

    schema: str | None = None
    prefix: str = DEFAULT_PREFIX

    @property
    def event(self) -> str:
        return self.qualified("event")

    @property
    def inbox(self) -> str:
        return self.qualified("inbox")

    @property
    def process(self) -> str:
        return self.qualified("process")

    @property
    def total(self) -> str:
        return self.qualified("total")

    @property
    def minute(self) -> str:
        return self.qualified("minute")

    @property
    def audit(self) -> str:
        return self.qualified("audit")

    @property
    def audit_batch(self) -> str:
        return self.qualified("audit_batch")

    @property
    def history(self) -> str:
        """Return the name of the table with the versions of the schema that were applied."""
        return self.qualified("history")

    @property
    def destination(self) -> str:
        return self.qualified("destination")

    @property
    def control(self) -> str:
        return self.qualified("control")

    @property
    def audience(self) -> str:
        return self.qualified("audience")

    @property
    def periodic(self) -> str:
        return self.qualified("periodic")

    @property
    def waiting(self) -> str:
        return self.qualified("waiting")

    @property
    def attempt(self) -> str:
        return self.qualified("attempt")

    def name(self, kind: str) -> str:
        """Return the table's name without the schema."""
        if kind == "inbox" and self._is_default:
            return "inbox"
        return self.prefix + ("schema" if kind == "history" else kind)

    def qualified(self, kind: str) -> str:
        """Return the table's name with the schema, if there is one."""
        return self.in_schema(self.name(kind))

    def in_schema(self, name: str) -> str:
        """Return the name of a table, an index or a sequence with the schema, if there is one."""
        return name if self.schema is None else f'"{self.schema}".{name}'

    @cached_property
    def placeholders(self) -> Mapping[str, str]:
        """Return the names for the placeholders in the templates of statements."""
        return MappingProxyType(
            {f"{kind}_table": self.qualified(kind) for kind in KINDS}
            | {
                "index_prefix": f"idx_{self.prefix}",
                "inbox_index": f"idx_{self.name('inbox')}_processed_at",
                "constraint_prefix": "" if self._is_default else self.prefix,
            }
        )

    @property
    def described(self) -> str:
        """Return the schema and the prefix, if they are not the default, as a text to add to the database's address."""
        parts = [] if self.schema is None else [f"schema {self.schema}"]
        parts += [] if self._is_default else [f"tables {self.prefix}…"]
        return f" ({', '.join(parts)})" if parts else ""

    @property
    def _is_default(self) -> bool:
        return self.prefix == DEFAULT_PREFIX


def parse_schema(value: object) -> str:
    """Return the name of a PostgreSQL schema, or raise ValueError. SQL quotes it, so upper case matters."""
    if not isinstance(value, str) or re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value) is None or len(value) > NAME_LENGTH:
        raise ValueError(
            f"must be a name of at most {NAME_LENGTH} letters, digits and underscores that begins with no digit"
        )
    return value


def parse_prefix(value: object) -> str:
    """Return the prefix of the tables' names, or raise ValueError.

    It is lower case only: SQL does not quote it, and PostgreSQL turns unquoted names into lower case.
    """
    if not isinstance(value, str) or re.fullmatch(r"[a-z_][a-z0-9_]*", value) is None or len(value) > PREFIX_LENGTH:
        raise ValueError(
            f"must be at most {PREFIX_LENGTH} lower-case letters, digits and underscores, and begin with no digit"
        )
    return value
