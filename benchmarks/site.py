"""A database with the outbox's tables, events in it, and workers on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, LiteralString
from urllib.parse import urlsplit

import psycopg
import redis

from benchmarks.actors import ACTOR, QUEUE
from benchmarks.guard import Guard
from outbox.core import Outbox
from outbox.settings import Settings
from outbox.storage.connect import open_database
from tests.support.servers import PostgresServer, RedisServer, wait_until

PATIENCE_SECONDS = 600.0
EVENT_TYPE = "order.placed"
PAYLOAD = {"text": "x" * 289}  # 300 bytes as JSON
WARM_UP = 300
READY = "ready for action"

# As if emitted one after another, a microsecond apart, and all of them after what warmed the worker up; ids begin with
# the time, as UUIDv7 does.
FILL = """
INSERT INTO outbox_event (id, aggregate_type, aggregate_id, event_type, payload, headers, idempotency_key, status,
    attempts, max_attempts, next_attempt_at, delivered_at, created_at, updated_at)
SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || substr(md5(n::text), 1, 3) || '8'
        || substr(md5(n::text), 4, 15))::uuid,
    'Order', n::text, %(type)s, %(payload)s::json, '{}', 'Order:' || %(key)s::text || n, %(status)s::text,
    %(attempts)s, 5, CASE WHEN %(status)s::text = 'pending' THEN at END,
    CASE WHEN %(status)s::text = 'delivered' THEN at END, at, at
FROM (SELECT n, statement_timestamp() - (%(count)s - n) * interval '1 microsecond' AS at
      FROM generate_series(1, %(count)s::int) AS n) AS item
"""
INTO_KEYS = """
UPDATE outbox_event SET ordering_key = %(key)s::text || 'key' || mod(aggregate_id::int, %(keys)s::int),
    order_state = 'holds'
WHERE idempotency_key LIKE 'Order:' || %(key)s::text || '%%' AND next_attempt_at IS NOT NULL AND ordering_key IS NULL
"""
# As `outbox.send` would have stored them: the message's id is the row's.
INTO_JOBS = """
UPDATE outbox_event SET kind = 'job', event_type = %(actor)s::text, aggregate_type = %(queue)s::text,
    aggregate_id = id::text, idempotency_key = 'job:' || id,
    payload = json_build_object('queue_name', %(queue)s::text, 'actor_name', %(actor)s::text,
        'args', json_build_array(%(text)s::text), 'kwargs', '{}'::json, 'options', '{}'::json,
    'message_id', id, 'message_timestamp', 1700000000000)
"""
DELIVERED_PER_SECOND = """
SELECT count(*) FILTER (WHERE delivered_at > began_at)::float8,
       extract(epoch FROM max(delivered_at) - began_at)::float8
FROM outbox_event, (SELECT min(delivered_at) AS began_at FROM outbox_event) AS first
GROUP BY began_at
"""
# Delivered, or put off with something in `progress`.
SETTLED_PER_SECOND = """
SELECT count(*) FILTER (WHERE updated_at > began_at)::float8,
       extract(epoch FROM max(updated_at) - began_at)::float8
FROM outbox_event,
     (SELECT min(updated_at) AS began_at FROM outbox_event WHERE status = 'delivered' OR progress IS NOT NULL) AS first
GROUP BY began_at
"""


class Site:
    """Its outbox, `box`, notifies no worker."""

    def __init__(self, postgres: PostgresServer, redis_server: RedisServer, folder: Path, name: str) -> None:
        self.url = postgres.create_database(name)
        self.redis_url = redis_server.url
        self.folder = folder
        self._server = postgres
        self._boxes: list[Outbox] = []
        self.box = self.make_box(dispatch="off")
        self.box.create_tables()
        with redis.Redis.from_url(self.redis_url) as client:
            client.flushall()
        self.connection = psycopg.connect(self.url, autocommit=True)

    def close(self) -> None:
        self.connection.close()
        for box in self._boxes:
            box.notifier.flush()
            database: Any = box.database
            database.close_all()
        self._server.drop_database(urlsplit(self.url).path[1:])

    def make_box(self, **settings: Any) -> Outbox:
        box = Outbox(Settings.load(publish_seconds=0, **settings), database=open_database(self.url))
        self._boxes.append(box)
        return box

    # Events

    def fill(self, count: int, status: str = "pending", key: str = "", keys: int = 0) -> None:
        """So many events, made by the database itself; with so many ordering keys by turns, if any."""
        with self.connection.transaction():  # a worker must not see them without their keys
            self._insert(count, status, key)
            if keys:
                self.connection.execute(INTO_KEYS, {"key": key, "keys": keys})
        self.connection.execute("VACUUM ANALYZE outbox_event")

    def _insert(self, count: int, status: str = "pending", key: str = "") -> None:
        values = {"type": EVENT_TYPE, "payload": self.payload_text, "key": key, "status": status, "count": count}
        self.connection.execute(FILL, values | {"attempts": int(status == "delivered")})

    def fill_jobs(self, count: int) -> None:
        """So many jobs."""
        with self.connection.transaction():  # a worker must not see them as events
            self._insert(count)
            self.connection.execute(INTO_JOBS, {"actor": ACTOR, "queue": QUEUE, "text": PAYLOAD["text"]})
        self.connection.execute("VACUUM ANALYZE outbox_event")

    @property
    def payload_text(self) -> str:
        return '{"text":"' + PAYLOAD["text"] + '"}'

    def empty(self) -> None:
        self.connection.execute("TRUNCATE outbox_event")

    def wait_until_drained(self) -> None:
        waiting = "SELECT 1 FROM outbox_event WHERE next_attempt_at IS NOT NULL LIMIT 1"
        self.wait_for(lambda: self.connection.execute(waiting).fetchone() is None)

    def wait_until_settled(self) -> None:
        """Wait until no event is due or claimed: all are delivered, or put off."""
        due = (
            "SELECT 1 FROM outbox_event WHERE next_attempt_at <= statement_timestamp() OR lease_id IS NOT NULL LIMIT 1"
        )
        self.wait_for(lambda: self.connection.execute(due).fetchone() is None)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        ends_at = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > ends_at:
                raise TimeoutError(f"not all events were delivered within {PATIENCE_SECONDS:.0f} s")
            time.sleep(0.05)

    def delivered_per_second(self) -> float:
        """From the first batch's end to the last one's, by the rows' own timestamps."""
        return self._per_second(DELIVERED_PER_SECOND)

    def settled_per_second(self) -> float:
        """Likewise, whatever the outcome."""
        return self._per_second(SETTLED_PER_SECOND)

    def _per_second(self, statement: LiteralString) -> float:
        row = self.connection.execute(statement).fetchone()
        events, seconds = (0.0, 0.0) if row is None else row
        return float(events / seconds) if seconds else 0.0

    # Workers

    @contextmanager
    def worker(
        self,
        module: str,
        processes: int = 1,
        variables: Mapping[str, str] = MappingProxyType({}),
        options: Sequence[str] = (),
    ) -> Iterator[subprocess.Popen[bytes]]:
        """`dramatiq jobs MODULE`, ready."""
        command = [sys.executable, "-m", "dramatiq", "jobs", module, "-p", str(processes), *options]
        environment = {**os.environ, "OUTBOX_DATABASE_URL": self.url, "PYTHONUNBUFFERED": "1", **variables}
        log = self.folder / "worker.log"
        with log.open("wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
        with Guard(process.pid):
            try:
                wait_until(lambda: log.read_text().count(READY) >= processes or process.poll() is not None)
                if log.read_text().count(READY) < processes:
                    raise RuntimeError(f"the worker does not start, saying:\n{log.read_text()[-2000:]}")
                yield process
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(60)

    def warm_up(self, fill: Callable[[int], None] | None = None) -> None:
        """A few events, so that connections are open, statements prepared and modules imported."""
        (self.fill if fill is None else fill)(WARM_UP)
        self.wake()
        self.wait_until_drained()
        self.empty()

    def wake(self) -> None:
        """As a sweep does."""
        from outbox.dramatiq import wakeup

        wakeup.send_sweep()
