"""The limit on SQLite: the bare INSERT, and our own claim and settle, with the driver that comes with Python.

`python -m benchmarks.bare_sqlite FOLDER EVENTS LATENCIES` makes the tables and says what `benchmarks.embedded` says. An
event that is committed reaches the thread that claims through a queue in memory.
"""

from __future__ import annotations

import json
import queue
import random
import sqlite3
import sys
import threading
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

from benchmarks.bare import AUDIENCE, LEASE_SECONDS
from benchmarks.embedded import BLOCK, DELIVERED_PER_SECOND, EMPTY, PAUSE_SECONDS
from benchmarks.site import EVENT_TYPE, PAYLOAD
from outbox.core import Outbox
from outbox.settings import Settings
from outbox.storage import statements
from outbox.storage.connect import open_database
from outbox.storage.ids import uuid7
from outbox.table_names import Tables

STATEMENTS = statements.sqlite(Tables())
BATCH = Settings().batch_size
NOW = "strftime('%Y-%m-%d %H:%M:%f000+00:00', 'now')"
INSERT = f"""
INSERT INTO outbox_event (id, aggregate_type, aggregate_id, event_type, payload, headers, idempotency_key, max_attempts,
    status, attempts, next_attempt_at, created_at, updated_at)
VALUES (?, ?, ?, ?, ?, '{{}}', ?, 5, 'pending', 0, {NOW}, {NOW}, {NOW})
"""  # noqa: S608  (an expression)


def connect(path: Path) -> sqlite3.Connection:
    """A connection as ours are: what is committed is on the disk."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = wal")
    connection.execute("PRAGMA busy_timeout = 10000")
    return connection


def row(number: int) -> tuple[str, ...]:
    key = f"Order:{number}"
    return uuid7().hex, "Order", str(number), EVENT_TYPE, json.dumps(PAYLOAD, separators=(",", ":")), key


def insert(connection: sqlite3.Connection, first: int, count: int) -> float:
    """Insert so many rows in one transaction; return the seconds without BEGIN and COMMIT."""
    connection.execute("BEGIN IMMEDIATE")
    began_at = time.perf_counter()
    for number in range(first, first + count):
        connection.execute(INSERT, row(number))
    seconds = time.perf_counter() - began_at
    connection.execute("COMMIT")
    return seconds


def claim(connection: sqlite3.Connection, lease_id: str) -> list[Any]:
    connection.execute("BEGIN IMMEDIATE")
    ids = [id for id, _ in connection.execute(STATEMENTS.due, ("", True, BATCH)).fetchall()]
    parameters = (lease_id, f"{LEASE_SECONDS:.3f}", json.dumps(ids), False)
    rows = connection.execute(STATEMENTS.claim, parameters).fetchall() if ids else []
    connection.execute("COMMIT")
    return rows


def settle(connection: sqlite3.Connection, rows: list[Any], lease_id: str) -> None:
    connection.execute(STATEMENTS.delivered, (AUDIENCE, None, json.dumps([row[0] for row in rows]), lease_id))


def drain(connection: sqlite3.Connection, handled: dict[str, int]) -> None:
    while rows := claim(connection, lease_id := uuid4().hex):
        for each in rows:
            handled[each[3]] = time.monotonic_ns()
        settle(connection, rows, lease_id)


def one_by_one(path: Path, connection: sqlite3.Connection, events: int) -> list[float]:
    handled: dict[str, int] = {}
    committed: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def work() -> None:
        own = connect(path)
        while committed.get():
            drain(own, handled)

    worker = threading.Thread(target=work)
    worker.start()
    chance, committed_at = random.Random(1), {}  # noqa: S311  (the same pauses every time)
    for number in range(-events, 0):
        time.sleep(chance.uniform(*PAUSE_SECONDS))
        insert(connection, number, 1)
        committed_at[str(number)] = time.monotonic_ns()
        committed.put(True)
    committed.put(False)
    worker.join()
    return [(handled[about] - at) / 1e6 for about, at in committed_at.items()]


def main(folder: str, events: int, latencies: int) -> None:
    path = Path(folder, "bare.db")
    box = Outbox(Settings(dispatch="off", publish_seconds=0), database=open_database(f"sqlite:///{path}"))
    box.create_tables()
    connection = connect(path)
    inside = sum(insert(connection, first, BLOCK) for first in range(0, events, BLOCK)) / events * 1e6
    connection.execute(EMPTY)
    began_at = time.perf_counter()
    for number in range(events):
        insert(connection, number, 1)
    committed = events / (time.perf_counter() - began_at)
    drain(connection, {})
    (drained,) = connection.execute(DELIVERED_PER_SECOND).fetchone()
    found = {"inside": inside, "committed": committed, "drained": drained}
    print(json.dumps(found | {"latencies": one_by_one(path, connection, latencies)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
