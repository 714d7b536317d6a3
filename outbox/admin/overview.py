"""How things stand, in one look: what waits, what failed and why, how fast it goes, who is at work."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from outbox.admin.durations import format_duration
from outbox.admin.queries import count
from outbox.destinations.recorded_destinations import absent_names, read_recorded
from outbox.operations.count import COUNT_CAP, Count
from outbox.operations.filters import Filter
from outbox.storage import progress, timestamp
from outbox.storage.dialect import Dialect
from outbox.storage.models import DELIVERED, FAILED, PENDING, SENDING, OutboxEvent
from outbox.storage.operator_models import Minute, Process
from outbox.storage.progress import ProgressEntry
from outbox.storage.status import is_failed, is_unfinished
from outbox.telemetry.counters import BOUNDS, BUCKETS
from outbox.telemetry.labels import labels_from_text
from outbox.telemetry.process_reports import MISSED_TURNS, SCHEDULER, UP, WORKER
from outbox.text import shorten

# Failures are told by the newest of them.
FAILURES_LOOKED_AT = 1_000
FAILURES_TOLD = 10
ERROR_LENGTH = 160
MINUTES = 60
QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is not finished: how much, how much of it is due, and since when the oldest of that has been."""

    unfinished: Count
    due: Count
    in_flight: Count
    expired: Count
    oldest_created_at: datetime | None
    oldest_due_at: datetime | None

    @property
    def free(self) -> Count:
        """Nobody is delivering them right now."""
        return Count(max(0, self.unfinished.number - self.in_flight.number), self.unfinished.at_least)


@dataclass(frozen=True, slots=True)
class Failure:
    """Events that failed at one destination for one reason."""

    destination: str
    error: str
    events: int


@dataclass(frozen=True, slots=True)
class Activity:
    """One minute of all processes together."""

    minute: datetime
    emitted: int = 0
    delivered: int = 0
    retried: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Stuck:
    """Calls of a destination that have not returned in time, in one process."""

    process: Process
    destination: str
    calls: int
    seconds: float
    all_places: bool

    @property
    def sentence(self) -> str:
        calls = "1 call" if self.calls == 1 else f"{self.calls} calls"
        since = format_duration(timedelta(seconds=self.seconds))
        have = "has" if self.calls == 1 else "have"
        return (
            f"{calls} of {self.destination} on {self.process.host}:{self.process.pid} {have} not returned for {since}"
        )


@dataclass(frozen=True, slots=True)
class Overview:
    now: datetime
    counts: dict[str, Count]
    backlog: Backlog
    failures: list[Failure]
    failures_looked_at: Count
    activity: list[Activity]
    latency: dict[float, float]
    breakers: dict[str, dict[str, Any]]
    processes: list[Process]
    # Recorded destinations that no running worker has: events wait for them.
    absent: list[str]

    @property
    def alive(self) -> list[Process]:
        return [process for process in self.processes if not self.is_silent(process)]

    @property
    def workers(self) -> list[Process]:
        return [process for process in self.alive if process.kind in (WORKER, UP)]

    @property
    def without_broker(self) -> list[Process]:
        """Workers that can't reach their broker: no wake-up and no sweep reaches them."""
        return [process for process in self.workers if "broker_error" in process.details]

    @property
    def schedulers(self) -> list[Process]:
        return [process for process in self.alive if process.kind in (SCHEDULER, UP)]

    @property
    def stuck(self) -> list[Stuck]:
        return [
            Stuck(process, name, each["calls"], each["seconds"], each["all_places"])
            for process in self.alive
            for name, each in process.details.get("stuck", {}).items()
        ]

    def is_silent(self, process: Process) -> bool:
        every = process.details.get("publish_seconds", 10.0)
        return bool(self.now - process.seen_at > timedelta(seconds=MISSED_TURNS * every + 1))


def overview(dialect: Dialect) -> Overview:
    """Everything at once, by the database's clock."""
    with dialect.connection():
        now = database_now(dialect)
        waiting = backlog(dialect, now)
        failed = count(dialect, Filter(status=FAILED))
        looked_at, failures = failures_by_cause(dialect)
        seen = processes(dialect)
        minutes = list(_minutes(dialect, now))
        return Overview(
            now=now,
            counts={
                PENDING: Count(
                    max(0, waiting.unfinished.number - waiting.in_flight.number), waiting.unfinished.at_least
                ),
                SENDING: waiting.in_flight,
                DELIVERED: count(dialect, Filter(status=DELIVERED)),
                FAILED: failed,
            },
            backlog=waiting,
            failures=failures,
            failures_looked_at=looked_at,
            activity=_activity(minutes, now),
            latency=_quantiles(minutes),
            breakers=breakers(seen),
            processes=seen,
            absent=absent_names(read_recorded(dialect)[1], ()),
        )


def database_now(dialect: Dialect) -> datetime:
    return timestamp.from_database(dialect.run(dialect.statements.now).fetchone()[0])


def backlog(dialect: Dialect, now: datetime) -> Backlog:
    """By the pending index, earliest first, up to a cap."""
    event = OutboxEvent
    query = (
        event.select(event.next_attempt_at, event.lease_until, event.created_at)
        .where(*is_unfinished())
        .order_by(event.next_attempt_at)
        .limit(COUNT_CAP + 1)
    )
    with dialect.connection():
        rows = [
            tuple(None if moment is None else timestamp.from_database(moment) for moment in row)
            for row in dialect.select(query.tuples())
        ]
    more = len(rows) > COUNT_CAP
    live = [row for row in rows if row[1] is not None and row[1] > now]
    expired = [row for row in rows if row[1] is not None and row[1] <= now]
    due = [row[0] for row in rows if row[0] is not None and row[0] <= now and (row[1] is None or row[1] <= now)]
    created = [row[2] for row in rows if row[2] is not None]
    return Backlog(
        unfinished=Count(min(len(rows), COUNT_CAP), more),
        due=Count(min(len(due), COUNT_CAP), more and len(due) == len(rows)),
        in_flight=Count(len(live), more and len(live) == len(rows)),
        expired=Count(len(expired)),
        oldest_created_at=min(created, default=None),
        oldest_due_at=min(due, default=None),
    )


def failures_by_cause(dialect: Dialect) -> tuple[Count, list[Failure]]:
    """The newest failed events by destination and error, the most frequent first; and how many were looked at."""
    event = OutboxEvent
    query = (
        event.select(event.progress, event.error_message)
        .where(*is_failed())
        .order_by(event.id.desc())
        .limit(FAILURES_LOOKED_AT + 1)
    )
    with dialect.connection():
        rows = dialect.select(query)
    causes: Counter[tuple[str, str]] = Counter()
    for row in rows[:FAILURES_LOOKED_AT]:
        causes.update(_causes(progress.failed(row.progress), row.error_message))
    told = [Failure(destination, error, events) for (destination, error), events in causes.most_common(FAILURES_TOLD)]
    return Count(min(len(rows), FAILURES_LOOKED_AT), len(rows) > FAILURES_LOOKED_AT), told


def _causes(failed: Mapping[str, ProgressEntry], message: str | None) -> Iterable[tuple[str, str]]:
    if not failed:
        return [("", _alike(message or ""))]
    return [(name, _alike("" if entry.error is None else entry.error)) for name, entry in failed.items()]


def _alike(error: str) -> str:
    """Errors that differ in an id or a number only are one."""
    text = re.sub(r"\b[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}\b", "…", error)
    text = re.sub(r"\d{4,}", "…", text)
    return shorten(text, ERROR_LENGTH)


def processes(dialect: Dialect) -> list[Process]:
    """Those that were there lately; workers first."""
    with dialect.connection():
        found: list[Process] = dialect.select(Process.select())
    order = {UP: 0, WORKER: 1, SCHEDULER: 2}
    return sorted(found, key=lambda each: (order.get(each.kind, 3), each.kind, each.host, each.pid))


def breakers(seen: Iterable[Process]) -> dict[str, dict[str, Any]]:
    """Destinations that are being left alone or have just recovered, as the workers tell; the latest word counts."""
    found: dict[str, dict[str, Any]] = {}
    for process in sorted(seen, key=lambda each: each.seen_at):
        known = process.details.get("destinations", {})
        for name in known:
            found.pop(name, None)
        found |= process.details.get("breakers", {})
    return found


def _minutes(dialect: Dialect, now: datetime) -> Iterable[Minute]:
    query = Minute.select().where(Minute.minute > now - timedelta(minutes=MINUTES))
    return dialect.select(query)


def _activity(rows: Iterable[Minute], now: datetime) -> list[Activity]:
    """A row for each minute, those without any activity included, the oldest first."""
    by_minute: dict[datetime, dict[str, int]] = defaultdict(dict)
    for row in rows:
        if not row.labels and row.name in Activity.__slots__:
            by_minute[row.minute][row.name] = int(row.value)
    this = now.replace(second=0, microsecond=0)
    minutes = [this - timedelta(minutes=number) for number in reversed(range(MINUTES))]
    return [Activity(minute, **by_minute.get(minute, {})) for minute in minutes]


def _quantiles(rows: Iterable[Minute]) -> dict[float, float]:
    """Latencies from commit to delivery, from the buckets: each is somewhere in its own."""
    buckets: Counter[str] = Counter()
    for row in rows:
        if row.name == "latency_bucket":
            buckets[dict(labels_from_text(row.labels))["le"]] += int(row.value)
    counted = sum(buckets.values())
    return {quantile: _quantile(buckets, quantile * counted) for quantile in QUANTILES} if counted else {}


def _quantile(buckets: Mapping[str, int], rank: float) -> float:
    seen = 0
    for bucket, (lower, upper) in zip(BUCKETS, pairwise((0.0, *BOUNDS, BOUNDS[-1])), strict=True):
        inside = buckets.get(bucket, 0)
        if inside and seen + inside >= rank:
            return lower + (upper - lower) * (rank - seen) / inside
        seen += inside
    return BOUNDS[-1]
