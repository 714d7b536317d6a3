"""The filter by which commands, pages and actions select events, and its translation to SQL conditions."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import peewee

from outbox.errors import SettingsError
from outbox.storage import progress, timestamp
from outbox.storage.ids import first_uuid7_of
from outbox.storage.models import STATUSES, OutboxEvent
from outbox.storage.status import status_is
from outbox.text import is_storable

# An event's id holds the time of the emitter's clock; created_at is the time of the database's clock. A filter by time
# allows for this difference between them. If it is larger, the filter misses the event; nothing else is affected.
CLOCK_LEEWAY = timedelta(hours=1)

# A Peewee expression for WHERE.
Condition = Any


@dataclass(frozen=True, slots=True)
class Filter:
    """Events that match every field that is not None; without any, all events.

    `since` (inclusive) and `until` (exclusive) are compared with the time of creation.
    """

    ids: tuple[UUID, ...] | None = None
    status: str | None = None
    event_type: str | None = None
    aggregate_type: str | None = None
    aggregate_id: str | None = None
    idempotency_key: str | None = None
    correlation_id: str | None = None
    tenant_id: str | None = None
    destination: str | None = None
    error: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def __post_init__(self) -> None:
        if self.status is not None and self.status not in STATUSES:
            raise SettingsError(f"There is no status {self.status!r}: it is one of {', '.join(STATUSES)}.")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, str) and not is_storable(value):
                raise SettingsError(f"{field.name} contains characters that no event can have: {value!r}.")
        for name in ("since", "until"):
            moment = getattr(self, name)
            if moment is not None and moment.tzinfo is None:
                raise SettingsError(f"{name} needs a timezone.")

    @property
    def is_empty(self) -> bool:
        """Whether no field is set: the filter matches every event."""
        return all(getattr(self, field.name) is None for field in fields(self))

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are set, as the audit log stores them."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: _plain(value) for name, value in found.items() if value is not None}

    def conditions(self, database: peewee.Database, *, in_window: bool = False) -> list[Condition]:
        """Return Peewee expressions, all of which must hold.

        `in_window` is for queries over a window of ids. They must use the index of the ids: by another index the
        database would fetch every event of, say, a type, and sort them. `column || ''` keeps it from that.
        """
        event = OutboxEvent
        found: list[Condition] = []
        for name in ("event_type", "aggregate_type", "aggregate_id", "idempotency_key", "correlation_id", "tenant_id"):
            value = getattr(self, name)
            if value is not None:
                column = getattr(event, name)
                found.append((column.concat("") if in_window else column) == value)
        if self.ids is not None:
            found.append(event.id.in_(self.ids))
        if self.status is not None:
            found += status_is(self.status)
        if self.destination is not None:
            found.append(progress.is_not_delivered_to(self.destination, database))
        if self.error is not None:
            found.append(event.error_message.contains(self.error))
        if self.since is not None:
            found += [event.created_at >= self.since, event.id >= first_uuid7_of(_moved(self.since, -CLOCK_LEEWAY))]
        if self.until is not None:
            found += [event.created_at < self.until, event.id < first_uuid7_of(_moved(self.until, CLOCK_LEEWAY))]
        return found


def _moved(moment: datetime, by: timedelta) -> datetime:
    """Return the time moved by this much; unchanged at either end of the calendar, where no event was emitted."""
    try:
        return moment + by
    except OverflowError:
        return moment


def _plain(value: Any) -> Any:
    """Return the value as JSON can hold it."""
    if isinstance(value, datetime):
        return timestamp.to_text(value)
    return [str(each) for each in value] if isinstance(value, tuple) else value
