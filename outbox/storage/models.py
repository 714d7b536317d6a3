"""The tables of events and of the inbox as Peewee models.

`schema.py` creates the tables, and `emit` and the workers use the statements of `sql/`. The models are for everything
else: the queries of the command line and the dashboard, and an application's own reports.

A query that the application runs uses the tables of the outbox that `configure` made. A query that the library runs
goes through a dialect (`Dialect.select`, `Dialect.count`), and uses the tables of that dialect's outbox: a program may
have several.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import peewee

from outbox.storage import timestamp
from outbox.table_names import Tables

PENDING, SENDING, DELIVERED, FAILED = STATUSES = ("pending", "sending", "delivered", "failed")

# What a row is: an event, a job (a Dramatiq message that `outbox.send` has stored), or a run of a periodic function.
# Only events go to the destinations whose patterns match their type. Rows of the other kinds have one destination each,
# which their router finds (`destinations/router.py`).
EVENT, JOB, RUN = KINDS = ("event", "job", "run")

# The states of an event with an ordering key (`delivery/ordering.py`). HOLDS: it holds back the later events of its
# key. SCHEDULED: it will hold them back as soon as it is due. WAITS: it waits behind an earlier event. The column is
# null if the event holds none back, and for events without a key.
HOLDS, SCHEDULED, WAITS = ORDER_STATES = ("holds", "scheduled", "waits")

NAME_LENGTH = 100
KEY_LENGTH = 255
CONTEXT_LENGTH = 255


class UtcDateTimeField(peewee.Field):
    """An aware datetime in UTC, with microseconds, on every database."""

    field_type = "TIMESTAMPTZ"

    def db_value(self, value: datetime | None) -> str | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{self.name} needs a timezone-aware datetime, such as datetime.now(UTC)")
        return timestamp.to_text(value)

    def python_value(self, value: datetime | str | None) -> datetime | None:
        return None if value is None else timestamp.from_database(value)


class Encoded(str):
    """JSON text that has not been decoded yet."""

    __slots__ = ()


class DecodedOnFirstUse(peewee.FieldAccessor):
    """Decode JSON at the first access: most callers of emit never read the payload of the event that it returns."""

    def __get__(self, instance: Any, instance_type: Any = None) -> Any:
        value = super().__get__(instance, instance_type)  # type: ignore[no-untyped-call]  # Peewee has no types for it
        if isinstance(value, Encoded):
            value = instance.__data__[self.name] = json.loads(value)
        return value


class JsonField(peewee.Field):
    """JSON that is stored as the text that was written (as PostgreSQL's type `json` does, unlike `jsonb`)."""

    field_type = "JSON"
    accessor_class = DecodedOnFirstUse

    def db_value(self, value: object) -> str | None:
        return value if value is None or isinstance(value, str) else json.dumps(value)

    def python_value(self, value: object) -> Any:
        # psycopg has decoded the column already; sqlite3 returns the text.
        return json.loads(value) if isinstance(value, str) else value


_in_use: ContextVar[Tables | None] = ContextVar("outbox_tables_in_use", default=None)


@contextmanager
def tables_in_use(tables: Tables) -> Iterator[None]:
    """Make the Peewee queries that this thread runs inside the block use these tables."""
    token = _in_use.set(tables)
    try:
        yield
    finally:
        _in_use.reset(token)


class NamedBySettings(peewee.Metadata):
    """The metadata of a model whose table's name depends on the settings; `kind` is one of `table_names.KINDS`."""

    kind: str

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._named: dict[Tables, peewee.Table] = {}

    @property
    def table(self) -> peewee.Table:
        # Peewee reads this when it writes the SQL of a query, not when the query is built.
        tables = _in_use.get()
        if tables is None:
            return super().table
        if tables not in self._named:
            columns = [field.column_name for field in self.sorted_fields]
            self._named[tables] = peewee.Table(tables.name(self.kind), columns, schema=tables.schema, _model=self.model)
        return self._named[tables]

    @table.deleter
    def table(self) -> None:
        self._table = None


def use_tables(model: type[peewee.Model], tables: Tables) -> None:
    """Make the application's own queries of this model use the table with this name."""
    metadata: Any = model._meta
    metadata.schema = tables.schema
    metadata.set_table_name(tables.name(metadata.kind))


class OutboxEvent(peewee.Model):
    """One event (or job, or run): what happened, and the state of its delivery."""

    id = peewee.UUIDField(primary_key=True)
    seq = peewee.BigIntegerField()
    aggregate_type = peewee.CharField(NAME_LENGTH)
    aggregate_id = peewee.CharField(NAME_LENGTH)
    event_type = peewee.CharField(NAME_LENGTH)
    ordering_key = peewee.CharField(KEY_LENGTH, null=True)
    payload = JsonField()
    headers = JsonField()
    correlation_id = peewee.CharField(CONTEXT_LENGTH, null=True)
    tenant_id = peewee.CharField(CONTEXT_LENGTH, null=True)
    idempotency_key = peewee.CharField(KEY_LENGTH)
    status = peewee.CharField(10, choices=[(status, status.capitalize()) for status in STATUSES])
    attempts = peewee.IntegerField()
    max_attempts = peewee.IntegerField()
    next_attempt_at = UtcDateTimeField(null=True)
    lease_id = peewee.UUIDField(null=True)
    lease_until = UtcDateTimeField(null=True)
    progress = JsonField(null=True)
    delivered_at = UtcDateTimeField(null=True)
    error_message = peewee.TextField(null=True)
    created_at = UtcDateTimeField()
    updated_at = UtcDateTimeField()
    kind = peewee.CharField(10, default=EVENT)
    subject = peewee.CharField(KEY_LENGTH, null=True)
    # Which destinations have the event: the id of a row of outbox_audience.
    audience = peewee.IntegerField(null=True)
    order_state = peewee.CharField(10, null=True, choices=[(state, state.capitalize()) for state in ORDER_STATES])
    # When the content was erased (`outbox erase`).
    erased_at = UtcDateTimeField(null=True)

    class Meta:
        table_name = "outbox_event"
        model_metadata_class = NamedBySettings
        kind = "event"

    def __str__(self) -> str:
        kind = "" if self.kind == EVENT else f"{self.kind} "
        return f"{kind}{self.event_type} ({self.status.capitalize()})"


class Waiting(peewee.Model):
    """One event that waits at one destination until the earlier events of its ordering key have ended there."""

    ordering_key = peewee.CharField(KEY_LENGTH)
    destination = peewee.CharField(KEY_LENGTH)
    seq = peewee.BigIntegerField()
    event_id = peewee.UUIDField()
    since = UtcDateTimeField()

    class Meta:
        table_name = "outbox_waiting"
        model_metadata_class = NamedBySettings
        kind = "waiting"
        primary_key = peewee.CompositeKey("ordering_key", "destination", "seq", "event_id")


class InboxMessage(peewee.Model):
    """One message that a handler has processed."""

    message_id = peewee.CharField(KEY_LENGTH)
    handler_name = peewee.CharField(KEY_LENGTH)
    processed_at = UtcDateTimeField()

    class Meta:
        table_name = "inbox"
        model_metadata_class = NamedBySettings
        kind = "inbox"
        primary_key = peewee.CompositeKey("message_id", "handler_name")
