"""What operators ask, in a large table, and what the index for it costs: `python -m benchmarks.operations [EVENTS]`.

On a throw-away PostgreSQL and on SQLite: every page and filter of the operators' queries, with so many events in the
table (a million), and emit and delivery with and without the index that looks events up by what they are about, in
turns.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import outbox
from outbox.admin import overview, queries
from outbox.core import Outbox
from outbox.operations.filters import Filter
from outbox.settings import Settings
from outbox.storage import timestamp
from outbox.storage.connect import open_database
from outbox.storage.ids import first_uuid7_of
from tests.support.servers import find_postgres

EVENTS = 1_000_000
DAYS = 6
FAILED = 0.01  # of the events
REPEATS = 7
EMITS, ROUNDS = 3_000, 5
TYPES = {
    "order.placed": 30,
    "order.shipped": 25,
    "order.paid": 25,
    "user.created": 10,
    "invoice.sent": 9.9,
    "rare": 0.1,
}
COLUMNS = (
    "id, aggregate_type, aggregate_id, event_type, payload, headers, tenant_id, idempotency_key, status, attempts, "
    "max_attempts, next_attempt_at, progress, delivered_at, error_message, created_at, updated_at"
)
INDEX = "CREATE INDEX idx_outbox_aggregate_id ON outbox_event (aggregate_id)"


def main(events: int = EVENTS) -> None:
    with tempfile.TemporaryDirectory() as folder:
        measure("SQLite", f"sqlite:///{Path(folder, 'outbox.db')}", events)
    with find_postgres() as postgres:
        measure("PostgreSQL", postgres.create_database("operations"), events)


def measure(name: str, url: str, events: int) -> None:
    database: Any = open_database(url)
    box = Outbox(Settings(dispatch="off", publish_seconds=0), database=database)
    box.create_tables()
    say(f"\n{name}: filling the table with {events:,} events …")
    fill(box, events)
    say(f"{'':28}{'milliseconds, median':>22}")
    for what, ask in questions(box).items():
        say(f"{what:<28}{statistics.median(times(ask)) * 1e3:>22.1f}")
    say(index_cost(box))
    database.close_all()


def questions(box: Outbox) -> dict[str, Callable[[], object]]:
    now = datetime.now(UTC)
    newest = queries.page(box.dialect, Filter()).events[0]
    filters = {
        "all": Filter(),
        "failed": Filter(status="failed"),
        "pending": Filter(status="pending"),
        "delivered": Filter(status="delivered"),
        "a frequent type": Filter(event_type="order.placed"),
        "a rare type": Filter(event_type="rare"),
        "an aggregate": Filter(aggregate_type=newest.aggregate_type, aggregate_id=newest.aggregate_id),
        "a key": Filter(idempotency_key=newest.idempotency_key),
        "two hours of last week": Filter(since=now - timedelta(days=3), until=now - timedelta(days=3, hours=-2)),
        "a tenant that is not there": Filter(tenant_id="nobody"),
        "an error's text": Filter(error="HTTP 500"),
    }
    pages: dict[str, Callable[[], object]] = {
        f"list: {name}": partial(queries.page, box.dialect, which) for name, which in filters.items()
    }
    return {
        "overview": lambda: overview.overview(box.dialect),
        "one event": lambda: queries.find(box.dialect, newest.id),
        "search": lambda: queries.search(box.dialect, f"{newest.aggregate_type}:{newest.aggregate_id}"),
        **pages,
    }


def times(ask: Callable[[], object]) -> Iterator[float]:
    for _ in range(REPEATS):
        began_at = time.perf_counter()
        ask()
        yield time.perf_counter() - began_at


def index_cost(box: Outbox) -> str:
    """Rounds in turns: each emits and delivers so many, one per transaction."""
    outbox_without, outbox_with = [], []
    box.registry.handler("bench", name="nothing")(lambda _: None)
    for _ in range(ROUNDS):
        box.dialect.run("DROP INDEX idx_outbox_aggregate_id")
        outbox_without.append(list(work(box)))
        box.dialect.run(INDEX)
        outbox_with.append(list(work(box)))
    lines = []
    for number, what in enumerate(("emit, a transaction each", "claim and settle, batches of 100")):
        bare, indexed = (statistics.median(each[number] for each in rounds) for rounds in (outbox_without, outbox_with))
        lines.append(
            f"{what}: {bare * 1e6:.0f} µs without the index, {indexed * 1e6:.0f} µs with it, ratio {indexed / bare:.2f}"
        )
    return "\n".join(lines)


def work(box: Outbox) -> Iterator[float]:
    """Seconds per event: emitting, then delivering."""
    payload = {"text": "x" * 280}
    began_at = time.perf_counter()
    for number in range(EMITS):
        with box.database.atomic():
            box.emit("Bench", number, "bench", payload, idempotency_key=outbox.UNIQUE)
    yield (time.perf_counter() - began_at) / EMITS
    box.dialect.run(
        "UPDATE outbox_event SET next_attempt_at = NULL WHERE event_type <> 'bench' AND next_attempt_at IS NOT NULL"
    )
    began_at = time.perf_counter()
    while box.process_pending_events(100)["processed"]:
        pass
    yield (time.perf_counter() - began_at) / EMITS


def fill(box: Outbox, events: int) -> None:
    """Most delivered, one in a hundred failed, and some of the newest waiting."""
    names = [name.strip() for name in COLUMNS.split(",")]
    with box.dialect.connection():
        connection = box.database.connection()
        if box.dialect.name == "postgres":
            with connection.cursor() as cursor, cursor.copy(f"COPY outbox_event ({COLUMNS}) FROM STDIN") as copy:
                for row in rows(events, as_id=str):
                    copy.write_row(row)
            box.dialect.run("VACUUM ANALYZE outbox_event")
        else:
            marks = ", ".join("?" * len(names))
            insert = f"INSERT INTO outbox_event ({COLUMNS}) VALUES ({marks})"  # noqa: S608  (names and marks)
            with box.database.atomic("IMMEDIATE"):
                connection.executemany(insert, rows(events, as_id=lambda given: given.hex))


def rows(events: int, as_id: Callable[[UUID], str]) -> Iterator[tuple[Any, ...]]:
    chance = random.Random(1)  # noqa: S311  (the same table every time)
    now = datetime.now(UTC)
    for number in range(events):
        at = now - timedelta(days=DAYS) * (1 - number / events)
        id = UUID(int=first_uuid7_of(at).int | chance.getrandbits(60))
        (event_type,) = chance.choices(list(TYPES), list(TYPES.values()))
        status = "pending" if number > events - 1_000 else "failed" if chance.random() < FAILED else "delivered"
        error = f"HTTP {chance.choice((404, 422, 500))}" if status == "failed" else None
        progress = {"runner": {"state": "failed", "attempts": 5, "error": error}} if error else None
        moment = timestamp.to_text(at)
        yield (
            as_id(id),
            event_type.partition(".")[0].title(),
            str(chance.randrange(events // 4)),
            event_type,
            json.dumps({"text": "x" * 280}),
            "{}",
            chance.choice((None, "acme", "globex")),
            f"key {number}",
            status,
            1,
            5,
            moment if status == "pending" else None,
            None if progress is None else json.dumps(progress),
            moment if status == "delivered" else None,
            None if error is None else f"runner: {error}",
            moment,
            moment,
        )


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
