"""Define the filter with which commands, pages and actions select events, and translate it to SQL conditions."""

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

# An event's id contains a time from the emitter's clock, but created_at is from the database's clock. A filter by time
# tolerates this difference between the clocks. If the difference is larger, the filter misses the event.
CLOCK_LEEWAY = timedelta(hours=1)

# A Peewee expression for WHERE.
Condition = Any


@dataclass(frozen=True, slots=True)
class Filter:
    """Selects the events that match every field that is not None. If all fields are None, it selects all events.

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
        """Return whether no field is set, so that the filter matches every event."""
        return all(getattr(self, field.name) is None for field in fields(self))

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are set, as the audit log stores them."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: _json_value(value) for name, value in values.items() if value is not None}

    def conditions(self, database: peewee.Database, *, in_window: bool = False) -> list[Condition]:
        """Return Peewee expressions, all of which must hold.

        `in_window` is for queries over a window of ids, which must use the index of the ids. With another index, the
        database would fetch, for example, every event of a type, and sort them. The expression `column || ''` prevents
        that, because no index contains it.
        """
        event = OutboxEvent
        conditions: list[Condition] = []
        for name in ("event_type", "aggregate_type", "aggregate_id", "idempotency_key", "correlation_id", "tenant_id"):
            value = getattr(self, name)
            if value is not None:
                column = getattr(event, name)
                conditions.append((column.concat("") if in_window else column) == value)
        if self.ids is not None:
            conditions.append(event.id.in_(self.ids))
        if self.status is not None:
            conditions += status_is(self.status)
        if self.destination is not None:
            conditions.append(progress.is_not_delivered_to(self.destination, database))
        if self.error is not None:
            conditions.append(event.error_message.contains(self.error))
        if self.since is not None:
            conditions += [
                event.created_at >= self.since,
                event.id >= first_uuid7_of(_shift(self.since, -CLOCK_LEEWAY)),
            ]
        if self.until is not None:
            conditions += [event.created_at < self.until, event.id < first_uuid7_of(_shift(self.until, CLOCK_LEEWAY))]
        return conditions


def _shift(moment: datetime, by: timedelta) -> datetime:
    """Return the time plus `by`. If the calendar ends before that, return the time; no event is that old or new."""
    try:
        return moment + by
    except OverflowError:
        return moment


def _json_value(value: Any) -> Any:
    """Return the value in a form that JSON supports."""
    if isinstance(value, datetime):
        return timestamp.to_text(value)
    return [str(each) for each in value] if isinstance(value, tuple) else value
