"""Who did what: an entry for each change that an operator makes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import UUID

from outbox.operations.filters import Filter
from outbox.storage.ids import uuid7
from outbox.storage.records import Audit

if TYPE_CHECKING:
    from outbox.core import Outbox

LISTED = 50
WHO_LENGTH = 255


class Entry:
    """One change under way."""

    def __init__(self, box: Outbox, id: UUID | None) -> None:
        self._box = box
        self._id = id

    def add(self, affected: int) -> None:
        """In the transaction of what was done: the number is right, whatever interrupts it."""
        if self._id is not None and affected:
            self._box.dialect.run(self._box.dialect.statements.audit_add, (affected, self._box.dialect.id(self._id)))


@contextmanager
def record(box: Outbox, who: str | None, action: str, which: Filter) -> Iterator[Entry]:
    """An entry from before the first change on; it says when it ended, unless it was cut off."""
    if who is None:
        yield Entry(box, None)
        return
    id = uuid7()
    key = box.dialect.id(id)
    statements = box.dialect.statements
    box.dialect.run(statements.audit_begin, (key, who[:WHO_LENGTH], action, json.dumps(which.to_json())))
    yield Entry(box, id)
    box.dialect.run(statements.audit_end, (key,))


def latest(box: Outbox, size: int = LISTED) -> list[Audit]:
    """Newest first."""
    with box.dialect.connection():
        return box.dialect.select(Audit.select().order_by(Audit.id.desc()).limit(size))
