"""The overview of an outbox: what waits, what failed and why, throughput and latency, and which processes run.

`outbox status`, the dashboard's first page, the metrics and the doctor use it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from outbox.admin.durations import format_duration
from outbox.admin.queries import count_by_kind
from outbox.admin.recent_activity import Activity, activity_by_minute, last_hour, latency_quantiles
from outbox.destinations.recorded_destinations import absent_names, read_recorded
from outbox.operations.count import COUNT_CAP, Count, total
from outbox.operations.filters import Filter
from outbox.storage import progress
from outbox.storage.dialect import Dialect
from outbox.storage.models import DELIVERED, EVENT, FAILED, KINDS, PENDING, SENDING, OutboxEvent
from outbox.storage.operator_models import Process
from outbox.storage.progress import ProgressEntry
from outbox.storage.status import is_failed, is_unfinished
from outbox.storage.timestamp import from_database
from outbox.telemetry.process_reports import MISSED_REPORTS, SCHEDULER, UP, WORKER
from outbox.text import shorten

# Failures are grouped by cause: this many of the newest failed events are read, and this many causes are shown.
FAILURES_LOOKED_AT = 1_000
MOST_CAUSES = 10
ERROR_LENGTH = 160


@dataclass(frozen=True, slots=True)
class Backlog:
    """The events and jobs that have not ended, and how long the oldest of them has waited.

    `in_flight` counts those under a lease, `expired` those whose lease has expired, and `due` those that a worker could
    claim now. `pending_by_kind` and `in_flight_by_kind` have the kinds (event, job, run) that there are.
    """

    unfinished: Count
    due: Count
    in_flight: Count
    expired: Count
    oldest_created_at: datetime | None
    oldest_due_at: datetime | None
    pending_by_kind: dict[str, Count]
    in_flight_by_kind: dict[str, Count]


@dataclass(frozen=True, slots=True)
class Failure:
    """How many events or jobs failed at one destination with the same error."""

    destination: str
    error: str
    events: int


@dataclass(frozen=True, slots=True)
class Stuck:
    """Calls of one destination that have not returned in time, in one process.

    If `all_places` is true, these calls occupy all threads that the process has for the destination, so the process
    delivers nothing more to it.
    """

    process: Process
    destination: str
    calls: int
    seconds: float
    all_places: bool

    @property
    def sentence(self) -> str:
        """Return, for example, `2 calls of billing on web-1:412 have not returned for 5 min`."""
        calls = "1 call" if self.calls == 1 else f"{self.calls} calls"
        since = format_duration(timedelta(seconds=self.seconds))
        have = "has" if self.calls == 1 else "have"
        return (
            f"{calls} of {self.destination} on {self.process.host}:{self.process.pid} {have} not returned for {since}"
        )


@dataclass(frozen=True, slots=True)
class Overview:
    """The state of an outbox at one time, by the database's clock."""

    now: datetime
    # By status, events and jobs together; and the same by kind, for those kinds that there are, events always included.
    counts: dict[str, Count]
    counts_by_kind: dict[str, dict[str, Count]]
    backlog: Backlog
    failures: list[Failure]
    failures_looked_at: Count
    activity: list[Activity]
    latency: dict[float, float]
    breakers: dict[str, dict[str, Any]]
    processes: list[Process]
    # Recorded destinations that no running worker has; events wait for them.
    absent: list[str]

    def describe(self, status: str) -> str:
        """Return, for example, `2 events`, `1 job` or `2 events and 1 job`: the rows with this status, by kind."""
        counts = {kind: counts[status] for kind, counts in self.counts_by_kind.items() if counts[status].number}
        words = [count.of(kind) for kind, count in (counts or {EVENT: Count(0)}).items()]
        return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))

    @property
    def alive(self) -> list[Process]:
        """Return the processes that have reported lately."""
        return [process for process in self.processes if not self.is_silent(process)]

    @property
    def workers(self) -> list[Process]:
        """Return the running workers, `outbox up` included."""
        return [process for process in self.alive if process.kind in (WORKER, UP)]

    @property
    def without_broker(self) -> list[Process]:
        """Return the workers that can't reach their broker, so no message tells them that events are due."""
        return [process for process in self.workers if "broker_error" in process.details]

    @property
    def schedulers(self) -> list[Process]:
        """Return the running schedulers, `outbox up` included."""
        return [process for process in self.alive if process.kind in (SCHEDULER, UP)]

    @property
    def stuck(self) -> list[Stuck]:
        """Return the calls of destinations that have not returned in time, as the processes report them."""
        return [
            Stuck(process, name, each["calls"], each["seconds"], each["all_places"])
            for process in self.alive
            for name, each in process.details.get("stuck", {}).items()
        ]

    def is_silent(self, process: Process) -> bool:
        """Return whether the process has missed more than MISSED_REPORTS reports."""
        interval_seconds = process.details.get("publish_seconds", 10.0)
        return bool(self.now - process.seen_at > timedelta(seconds=MISSED_REPORTS * interval_seconds + 1))


def overview(dialect: Dialect) -> Overview:
    """Read the overview from the database."""
    with dialect.connection():
        now = dialect.now()
        waiting = backlog(dialect, now)
        by_status = {
            PENDING: waiting.pending_by_kind,
            SENDING: waiting.in_flight_by_kind,
            DELIVERED: count_by_kind(dialect, Filter(status=DELIVERED)),
            FAILED: count_by_kind(dialect, Filter(status=FAILED)),
        }
        looked_at, failures = failures_by_cause(dialect)
        reported = processes(dialect)
        minutes = last_hour(dialect, now)
        _, recorded = read_recorded(dialect)
        return Overview(
            now=now,
            counts={status: total(counts.values()) for status, counts in by_status.items()},
            counts_by_kind=_by_kind(by_status),
            backlog=waiting,
            failures=failures,
            failures_looked_at=looked_at,
            activity=activity_by_minute(minutes, now),
            latency=latency_quantiles(minutes),
            breakers=breakers(reported),
            processes=reported,
            absent=absent_names(recorded, own=()),
        )


def _by_kind(by_status: Mapping[str, Mapping[str, Count]]) -> dict[str, dict[str, Count]]:
    """Return the counts by kind and status, given those by status and kind."""
    found = {kind for counts in by_status.values() for kind in counts}
    return {
        kind: {status: counts.get(kind, Count(0)) for status, counts in by_status.items()}
        for kind in KINDS
        if kind == EVENT or kind in found
    }


def backlog(dialect: Dialect, now: datetime, cap: int = COUNT_CAP) -> Backlog:
    """Count the events that have not ended, up to `cap`, in the order in which they are due."""
    event = OutboxEvent
    query = (
        event.select(event.next_attempt_at, event.lease_until, event.created_at, event.kind)
        .where(*is_unfinished())
        .order_by(event.next_attempt_at)
        .limit(cap + 1)
    )
    with dialect.connection():
        rows = [_waiting(*row) for row in dialect.select(query.tuples())]
    more = len(rows) > cap
    leased = [row for row in rows if row.lease_until is not None]
    in_flight = [row for row in leased if row.is_in_flight(now)]
    due = [row.due_at for row in rows if row.due_at <= now and not row.is_in_flight(now)]
    return Backlog(
        unfinished=Count.up_to(cap, len(rows)),
        due=Count(min(len(due), cap), more and len(due) == len(rows)),
        in_flight=Count(len(in_flight), more and len(in_flight) == len(rows)),
        expired=Count(len(leased) - len(in_flight)),
        oldest_created_at=min((row.created_at for row in rows), default=None),
        oldest_due_at=min(due, default=None),
        pending_by_kind=_count_kinds((row for row in rows[:cap] if not row.is_in_flight(now)), at_least=more),
        in_flight_by_kind=_count_kinds(in_flight, at_least=more and len(in_flight) == len(rows)),
    )


class _Waiting(NamedTuple):
    """A row that has not ended."""

    due_at: datetime
    lease_until: datetime | None
    created_at: datetime
    kind: str

    def is_in_flight(self, now: datetime) -> bool:
        return self.lease_until is not None and self.lease_until > now


def _waiting(due_at: Any, lease_until: Any, created_at: Any, kind: str) -> _Waiting:
    until = None if lease_until is None else from_database(lease_until)
    return _Waiting(from_database(due_at), until, from_database(created_at), kind)


def _count_kinds(rows: Iterable[_Waiting], *, at_least: bool) -> dict[str, Count]:
    return {kind: Count(number, at_least) for kind, number in Counter(row.kind for row in rows).items()}


def failures_by_cause(dialect: Dialect) -> tuple[Count, list[Failure]]:
    """Return how many of the newest failed events were read, and their causes, the most frequent first."""
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
    failures = [Failure(destination, error, events) for (destination, error), events in causes.most_common(MOST_CAUSES)]
    return Count.up_to(FAILURES_LOOKED_AT, len(rows)), failures


def _causes(failed: Mapping[str, ProgressEntry], message: str | None) -> Iterable[tuple[str, str]]:
    if not failed:  # it failed before it reached a destination
        return [("", _without_numbers(message or ""))]
    return [(name, _without_numbers("" if entry.error is None else entry.error)) for name, entry in failed.items()]


def _without_numbers(error: str) -> str:
    """Return the error with ids and long numbers replaced, so that errors that differ only in those are one cause."""
    text = re.sub(r"\b[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}\b", "…", error)
    text = re.sub(r"\d{4,}", "…", text)
    return shorten(text, ERROR_LENGTH)


def processes(dialect: Dialect) -> list[Process]:
    """Return the processes that are in the table outbox_process, workers first."""
    with dialect.connection():
        rows: list[Process] = dialect.select(Process.select())
    order = {UP: 0, WORKER: 1, SCHEDULER: 2}
    return sorted(rows, key=lambda each: (order.get(each.kind, 3), each.kind, each.host, each.pid))


def breakers(reported: Iterable[Process]) -> dict[str, dict[str, Any]]:
    """Return the circuit breakers that are open or recovering, as the workers report them.

    If workers disagree about a destination, the latest report wins.
    """
    latest: dict[str, dict[str, Any]] = {}
    for process in sorted(reported, key=lambda each: each.seen_at):
        known = process.details.get("destinations", {})
        for name in known:
            latest.pop(name, None)
        latest |= process.details.get("breakers", {})
    return latest
