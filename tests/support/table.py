"""The table as tests see it, and time as they move it: by the rows' timestamps, never by waiting."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from threading import Event as Gate
from typing import Any
from uuid import UUID

import peewee
import psycopg
import pytest

import outbox
from outbox.core import Outbox
from outbox.delivery.batch import Batch
from outbox.delivery.claim import claim
from outbox.storage import timestamp
from outbox.storage.models import OutboxEvent
from tests.support.outbox_parts import waiting_for_handlers
from tests.support.servers import PATIENCE_SECONDS, wait_until

on_postgres = pytest.mark.parametrize("url", ["postgres"], indirect=True)

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
MOMENTS = ("next_attempt_at", "lease_until", "delivered_at", "created_at", "updated_at")


def emit(count: int, event_type: str = "order.placed", **fields: Any) -> list[OutboxEvent]:
    """So many events of a type, that may repeat."""
    event = {"aggregate_type": "Order", "event_type": event_type, "idempotency_key": outbox.UNIQUE, **fields}
    database = outbox.current().database
    with nullcontext() if database.in_transaction() else database.atomic():
        return outbox.emit_many([{"aggregate_id": number, **event} for number in range(count)])


def emit_one(event_type: str = "order.placed", **fields: Any) -> OutboxEvent:
    return emit(1, event_type, **fields)[0]


def stored(event: OutboxEvent) -> OutboxEvent:
    """The event's row as it is now."""
    return OutboxEvent.get_by_id(event.id)


def error_of(event: OutboxEvent) -> str:
    """What the event's row says went wrong."""
    return str(stored(event).error_message)


def statuses() -> Counter[str]:
    """How many events are in which state."""
    return Counter(event.status for event in OutboxEvent.select(OutboxEvent.status))


def change(*events: OutboxEvent, **fields: Any) -> None:
    """Write into the rows of some events; without any, into all."""
    query = OutboxEvent.update(**fields)
    if events:
        query = query.where(OutboxEvent.id.in_([event.id for event in events]))
    query.execute()


def expire_leases(*events: OutboxEvent) -> None:
    change(*events, lease_until=LONG_AGO)


def sees_leases(event: OutboxEvent, count: int) -> Callable[[], bool]:
    """Return whether the table has shown so many different ends of the event's lease."""
    seen: set[datetime] = set()

    def look() -> bool:
        seen.add(stored(event).lease_until)
        return len(seen) >= count

    return look


def let_pass(**time: float) -> None:
    """As if that much time had passed for every event: `let_pass(hours=1)`."""
    back = timedelta(**time)
    for event in OutboxEvent.select():
        moments = {name: moment for name in MOMENTS if (moment := getattr(event, name)) not in (None, timestamp.LATEST)}
        moved = {name: moment - back for name, moment in moments.items()}
        change(event, progress=_earlier(event.progress, back), **moved)


def _earlier(progress: dict[str, Any] | None, back: timedelta) -> dict[str, Any] | None:
    if progress is None:
        return None
    return {name: entry | _moments(entry, back) for name, entry in progress.items()}


def _moments(entry: dict[str, Any], back: timedelta) -> dict[str, str]:
    found = {
        name: timestamp.from_database(entry[name])
        for name in ("since", "not_before", "first_due", "held_since")
        if name in entry
    }
    return {name: timestamp.to_text(moment - back) for name, moment in found.items()}


def claimed(box: Outbox, size: int = 100) -> Batch:
    """A claim that finds something."""
    batch = claim(box.delivery, size)
    assert batch is not None
    return batch


def deliver_all(box: Outbox) -> None:
    """Deliver until nothing is due: a batch gives back what it has not begun after a second, on a slow machine."""
    while box.process_pending_events()["processed"]:
        pass


def another(box: Outbox) -> Outbox:
    """A second worker on the same table, with the same handlers."""
    return Outbox(box.settings, database=box.database, registry=box.registry)


def other_worker(box: Outbox, **patterns: str) -> Outbox:
    """A worker with destinations of its own, which it has recorded; patterns are separated by spaces."""
    other = waiting_for_handlers(Outbox(box.settings, database=box.database))
    for name, texts in patterns.items():
        other.registry.handler(*texts.split(), name=name)(lambda _: None)
    other.become_worker()
    other.recorder.keep_current()
    return other


def passes(gate: Gate) -> None:
    """Wait at a gate; a test that never opens it fails."""
    assert gate.wait(PATIENCE_SECONDS)


def becomes_true(condition: Any) -> None:
    assert wait_until(condition, PATIENCE_SECONDS)


@contextmanager
def at_work(box: Outbox, *gates: Gate, batch_size: int = 100) -> Iterator[Future[dict[str, int]]]:
    """A worker in a thread of its own that processes a batch; at the end of the block its gates are opened."""
    with ThreadPoolExecutor(1) as executor:
        try:
            yield executor.submit(box.process_pending_events, batch_size)
        finally:
            for gate in gates:
                gate.set()


@contextmanager
def locking(url: str, id: UUID) -> Iterator[None]:
    """Another transaction has the row, on PostgreSQL."""
    with psycopg.connect(url) as connection:
        connection.execute("SELECT FROM outbox_event WHERE id = %s FOR UPDATE", (id,))
        yield


def sessions_waiting(url: str) -> int:
    """How many of the database's sessions wait for another, on PostgreSQL."""
    with psycopg.connect(url) as connection:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def end_session(database: Any, pid: int) -> None:
    """End a session of PostgreSQL, and wait until it has ended. (From 14 on pg_terminate_backend waits by itself.)"""
    database.execute_sql("SELECT pg_terminate_backend(%s)", (pid,))
    running = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
    becomes_true(lambda: database.execute_sql(running, (pid,)).fetchone() == (0,))


def end_connections(url: str) -> None:
    """End all connections, as a restart of the server does."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


@contextmanager
def impatient(box: Outbox) -> Iterator[None]:
    """A statement that waits for a lock, on PostgreSQL, fails instead of waiting for ever."""
    with box.dialect.connection():
        box.database.execute_sql("SET lock_timeout = '3s'")
        yield
        box.database.execute_sql("RESET lock_timeout")


@contextmanager
def statements(database: peewee.Database) -> Iterator[list[str]]:
    """What is run inside the block, by the first words of each statement."""
    seen: list[str] = []

    def note(query: Any) -> None:
        seen.append(" ".join(query.sql.split()))

    database.query_hooks.append(note)
    try:
        yield seen
    finally:
        database.query_hooks.remove(note)


def ids(events: Sequence[Any]) -> list[Any]:
    return [event.id for event in events]
