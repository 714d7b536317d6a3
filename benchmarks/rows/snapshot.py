"""A snapshot held open elsewhere, under load: what was settled meanwhile can't be tidied up.

A worker drains while events keep coming, always a few thousand ahead of it. Then somebody holds a snapshot open, as a
long report or a dump does; then releases it, and the table is vacuumed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg

from benchmarks.ground import Ground
from benchmarks.row import Row, Sample, at_least
from benchmarks.site import EVENT_TYPE, FILL, Site

BEFORE, DURING, AFTER = "before", "held", "released and vacuumed"
LEAST_DURING, LEAST_AFTER = 0.5, 0.9
AHEAD, EACH = 5_000, 1_000
LAST_SECONDS = 10.0

DELIVERED_SINCE = """
SELECT count(*) / extract(epoch FROM statement_timestamp() - %s)::float8 FROM outbox_event WHERE delivered_at > %s
"""


def measure(ground: Ground) -> Iterator[Sample]:
    held, free = ground.size.held_seconds, ground.size.free_seconds
    last = min(LAST_SECONDS, held)
    title = f"a snapshot held for {held:g} s, its last {last:g} s"
    during = Row(title, "events/s", at_least(LEAST_DURING, BEFORE), ours=DURING)
    after = Row("after its release and a vacuum", "events/s", at_least(LEAST_AFTER, BEFORE), ours=AFTER)
    with ground.site() as site, site.worker("benchmarks.handlers"):
        site.warm_up()
        with events_coming(site):
            time.sleep(min(2.0, free))
            before = rate(site, free)
            with psycopg.connect(site.url) as holder:
                holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                holder.execute("SELECT count(*) FROM pg_class")
                time.sleep(held - last)
                while_held = rate(site, last)
            site.connection.execute("VACUUM outbox_event")
            released = rate(site, free)
    for row, side, value in ((during, DURING, while_held), (after, AFTER, released)):
        yield Sample(row, BEFORE, before)
        yield Sample(row, side, value)


def rate(site: Site, seconds: float) -> float:
    """Delivered per second over so long."""
    began = site.connection.execute("SELECT statement_timestamp()").fetchone()
    assert began is not None  # noqa: S101  (for the type checker)
    time.sleep(seconds)
    row = site.connection.execute(DELIVERED_SINCE, (began[0], began[0])).fetchone()
    return 0.0 if row is None else float(row[0])


@contextmanager
def events_coming(site: Site) -> Iterator[None]:
    """The database makes them itself, so that little is taken from the worker's share of the machine."""
    done = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        feeding = executor.submit(feed, site, done)
        try:
            yield
        finally:
            done.set()
        feeding.result()


def feed(site: Site, done: threading.Event) -> None:
    """Always so many ahead of the worker, and no more: a backlog that grows would be another measurement."""
    values = {"type": EVENT_TYPE, "payload": site.payload_text, "status": "pending", "attempts": 0, "count": EACH}
    waiting = "SELECT count(*) FROM (SELECT 1 FROM outbox_event WHERE next_attempt_at IS NOT NULL LIMIT %s) AS ahead"
    number = 0
    with psycopg.connect(site.url, autocommit=True) as connection:
        while not done.is_set():
            row = connection.execute(waiting, (AHEAD,)).fetchone()
            if row is not None and row[0] < AHEAD:
                number += 1
                connection.execute(FILL, values | {"key": f"{number}:"})
                site.wake()
            else:
                done.wait(0.05)
