"""Define the filter with which commands, pages and actions select events and jobs, and translate it to SQL conditions.

The table holds rows of several kinds. A type and an aggregate are those of events, an actor is that of jobs: a filter
by one of them selects no row of another kind, even if it has the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Self
from uuid import UUID

import peewee

from outbox.errors import SettingsError
from outbox.events.job_row import PREFIX
from outbox.storage import progress, timestamp
from outbox.storage.ids import first_uuid7_of
from outbox.storage.models import EVENT, JOB, KINDS, STATUSES, OutboxEvent
from outbox.storage.status import has_ended, status_is
from outbox.text import is_storable

# An event's id contains a time from the emitter's clock, but created_at is from the database's clock. A filter by time
# tolerates this difference between the clocks. If the difference is larger, the filter misses the event.
CLOCK_LEEWAY = timedelta(hours=1)

# The fields that are times.
TIMES = ("since", "until", "ended_since", "ended_until")

# A Peewee expression for WHERE.
Condition = Any


@dataclass(frozen=True, slots=True)
class Filter:
    """Selects the rows that match every field that is not None. If all fields are None, it selects all rows.

    `kind` is "event", "job" or "run"; an `actor` selects jobs only, and a type or an aggregate selects events unless a
    `kind` is given. The `idempotency_key` of a job is the one that the application has given, without its prefix.
    `since` (inclusive) and `until` (exclusive) are compared with the time of creation; `ended_since` and `ended_until`
    with the time at which the event was delivered or has failed, and select only events that have ended.
    """

    ids: tuple[UUID, ...] | None = None
    status: str | None = None
    kind: str | None = None
    event_type: str | None = None
    actor: str | None = None
    aggregate_type: str | None = None
    aggregate_id: str | None = None
    idempotency_key: str | None = None
    ordering_key: str | None = None
    correlation_id: str | None = None
    tenant_id: str | None = None
    subject: str | None = None
    destination: str | None = None
    error: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    ended_since: datetime | None = None
    ended_until: datetime | None = None

    def __post_init__(self) -> None:
        if self.status is not None and self.status not in STATUSES:
            raise SettingsError(f"There is no status {self.status!r}: it is one of {', '.join(STATUSES)}.")
        if self.kind is not None and self.kind not in KINDS:
            raise SettingsError(f"There is no kind {self.kind!r}: it is one of {', '.join(KINDS)}.")
        if self.actor is not None and (self.kind not in (None, JOB) or self.event_type is not None):
            raise SettingsError("An actor selects jobs, which have no type: give the actor alone, or the kind job.")
        if self.kind == JOB and self.event_type is not None:
            raise SettingsError("Jobs have no type: to select the jobs of an actor, give the actor.")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, str) and not is_storable(value):
                raise SettingsError(f"{field.name} contains characters that no event can have: {value!r}.")
        for name in TIMES:
            moment = getattr(self, name)
            if moment is not None and moment.tzinfo is None:
                raise SettingsError(f"{name} needs a timezone.")

    @property
    def is_empty(self) -> bool:
        """Return whether no field is set, so that the filter matches every event."""
        return all(getattr(self, field.name) is None for field in fields(self))

    @property
    def only_kind(self) -> str | None:
        """Return the kind of the rows that the filter selects, or None if it selects rows of any kind."""
        if self.actor is not None:
            return JOB
        if self.kind is None and (self.event_type is not None or self.aggregate_type is not None):
            return EVENT
        return self.kind

    @property
    def name(self) -> str | None:
        """Return what the column `event_type` must contain: the type of an event, or the actor of a job."""
        return self.event_type if self.actor is None else self.actor

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are set, as the audit log stores them."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: _json_value(value) for name, value in values.items() if value is not None}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the filter that `to_json` has returned as this; raise SettingsError if it is none."""
        known = {field.name for field in fields(cls)}
        if not known >= values.keys():
            raise SettingsError(f"A filter has no {', '.join(sorted(values.keys() - known))}.")
        return cls(**{name: _from_json_value(name, value) for name, value in values.items()})

    def conditions(self, database: peewee.Database, *, in_window: bool = False) -> list[Condition]:
        """Return Peewee expressions, all of which must hold.

        `in_window` is for queries over a window of ids, which must use the index of the ids. With another index, the
        database would fetch, for example, every event of a type, and sort them. The expression `column || ''` prevents
        that, because no index contains it. The indexes of the tenant and of the correlation id may be used: they are in
        the order of the ids.
        """
        event = OutboxEvent
        conditions: list[Condition] = []
        for column, value in (
            (event.event_type, self.name),
            (event.aggregate_type, self.aggregate_type),
            (event.aggregate_id, self.aggregate_id),
            (event.ordering_key, self.ordering_key),
            (event.subject, self.subject),
        ):
            if value is not None:
                conditions.append((column.concat("") if in_window else column) == value)
        indexed = ((event.correlation_id, self.correlation_id), (event.tenant_id, self.tenant_id))
        conditions += [column == value for column, value in indexed if value is not None]
        if self.only_kind is not None:
            conditions.append(event.kind == self.only_kind)
        conditions += self.key_conditions()
        if self.ids is not None:
            conditions.append(event.id.in_(self.ids))
        if self.status is not None:
            conditions += status_is(self.status)
        if self.destination is not None:
            conditions.append(progress.is_not_delivered_to(self.destination, database))
        if self.error is not None:
            conditions.append(event.error_message.contains(self.error))
        return conditions + self._time_conditions()

    def _time_conditions(self) -> list[Condition]:
        """Return the conditions for the times at which an event was created and ended."""
        event = OutboxEvent
        conditions: list[Condition] = []
        if self.since is not None:
            conditions += [
                event.created_at >= self.since,
                event.id >= first_uuid7_of(_shift(self.since, -CLOCK_LEEWAY)),
            ]
        if self.until is not None:
            conditions += [event.created_at < self.until, event.id < first_uuid7_of(_shift(self.until, CLOCK_LEEWAY))]
        ended_at = peewee.fn.COALESCE(event.delivered_at, event.updated_at)
        if self.ended_since is not None or self.ended_until is not None:
            conditions += has_ended()
        if self.ended_since is not None:
            conditions.append(ended_at >= event.updated_at.db_value(self.ended_since))
        if self.ended_until is not None:
            conditions.append(ended_at < event.updated_at.db_value(self.ended_until))
            # It was created before it ended.
            conditions.append(event.id < first_uuid7_of(_shift(self.ended_until, CLOCK_LEEWAY)))
        return conditions

    def key_conditions(self) -> list[Condition]:
        """Return the condition for the idempotency key. The index begins with the type, so it must be known as well."""
        event, key = OutboxEvent, self.idempotency_key
        if key is None:
            return []
        if self.only_kind is not None:
            return [event.idempotency_key == (PREFIX + key if self.only_kind == JOB else key)]
        of_job, of_other = (event.idempotency_key == PREFIX + key), (event.idempotency_key == key)
        return [of_job & (event.kind == JOB) | of_other & (event.kind != JOB)]


def _shift(moment: datetime, by: timedelta) -> datetime:
    """Return the time plus `by`. If the calendar ends before that, return the time; no event is that old or new."""
    try:
        return moment + by
    except OverflowError:
        return moment


def _from_json_value(name: str, value: Any) -> Any:
    if name in TIMES:
        return timestamp.from_database(value)
    return tuple(UUID(each) for each in value) if name == "ids" else value


def _json_value(value: Any) -> Any:
    """Return the value in a form that JSON supports."""
    if isinstance(value, datetime):
        return timestamp.to_text(value)
    return [str(each) for each in value] if isinstance(value, tuple) else value
