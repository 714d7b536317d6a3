"""The ids of events: UUIDv7, which sort by their time of creation."""

from __future__ import annotations

import sys
from datetime import datetime
from uuid import UUID

if sys.version_info >= (3, 14):
    from uuid import uuid7
else:
    from uuid_utils.compat import uuid7

__all__ = ["as_uuid", "first_uuid7_of", "uuid7"]


def first_uuid7_of(moment: datetime) -> UUID:
    """Return the smallest UUIDv7 that can be made at `moment`: ids below it are older."""
    milliseconds = max(0, int(moment.timestamp() * 1000))
    return UUID(int=milliseconds << 80 | 0x7 << 76 | 0x2 << 62)


def as_uuid(value: UUID | str) -> UUID:
    """Return an id that a database returned: PostgreSQL returns a UUID, SQLite its hexadecimal digits."""
    return value if isinstance(value, UUID) else UUID(value)
