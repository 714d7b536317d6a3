"""A snapshot held open elsewhere, under load: what was settled meanwhile can't be tidied up.

A worker works on a backlog that outlasts the measurement. Then another session holds a snapshot open, as a long report
or a dump does; then releases it, and the table is vacuumed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg

from benchmarks.ground import Ground
from benchmarks.row import Row, Sample, at_least
from benchmarks.site import Site

BEFORE, DURING, AFTER = "before", "held", "released and vacuumed"
LEAST_DURING, LEAST_AFTER = 0.5, 0.9
LAST_SECONDS = 10.0
# So many times what the worker would deliver at the speed that it begins with: vacuuming takes its time, too.
RESERVE = 2.0

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
        site.fill(int(speed(site, ground.size.few_waiting) * (held + 2 * free) * RESERVE))
        site.wake()
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


def speed(site: Site, events: int) -> float:
    """What the worker does when nothing is in its way."""
    site.fill(events)
    site.wake()
    site.wait_until_drained()
    found = site.delivered_per_second()
    site.empty()
    return found


def rate(site: Site, seconds: float) -> float:
    """Delivered per second over so long."""
    began = site.connection.execute("SELECT statement_timestamp()").fetchone()
    assert began is not None  # noqa: S101  (for the type checker)
    time.sleep(seconds)
    row = site.connection.execute(DELIVERED_SINCE, (began[0], began[0])).fetchone()
    return 0.0 if row is None else float(row[0])
