"""Write and read the audit log. It has an entry for each action of an operator, with the operator's name.

`apply_action.py` writes the entries; the dashboard's audit page shows them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from outbox.operations.filters import Filter
from outbox.storage.dialect import Dialect
from outbox.storage.ids import uuid7
from outbox.storage.operator_models import Audit

LISTED = 50
WHO_LENGTH = 255


class Entry:
    """The audit entry of one action that is running. If `id` is None, nothing is written."""

    def __init__(self, dialect: Dialect, id: UUID | None) -> None:
        self._dialect = dialect
        self._id = id

    def add(self, affected: int) -> None:
        """Add the number of events that one batch has changed.

        Call it in the transaction that changed them, so that the sum is right even if the action is interrupted.
        """
        if self._id is not None and affected:
            self._dialect.run(self._dialect.statements.audit_add, (affected, self._dialect.id(self._id)))


@contextmanager
def record(dialect: Dialect, who: str | None, action: str, filter: Filter) -> Iterator[Entry]:
    """Write an entry before the first change, and its end time after the last one.

    An entry without an end time belongs to an action that is still running, or that was interrupted. If `who` is None,
    the application makes the change, and nothing is written.
    """
    if who is None:
        yield Entry(dialect, None)
        return
    id = uuid7()
    key = dialect.id(id)
    dialect.run(dialect.statements.audit_begin, (key, who[:WHO_LENGTH], action, json.dumps(filter.to_json())))
    yield Entry(dialect, id)
    dialect.run(dialect.statements.audit_end, (key,))


def latest(dialect: Dialect, size: int = LISTED) -> list[Audit]:
    """Return the latest entries, newest first."""
    with dialect.connection():
        return dialect.select(Audit.select().order_by(Audit.id.desc()).limit(size))
