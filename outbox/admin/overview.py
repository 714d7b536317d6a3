"""The overview of an outbox: what waits, what failed and why, throughput and latency, and which processes run.

`outbox status`, the dashboard's first page, the metrics and the doctor use it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import peewee

from outbox.admin.blocked_keys import BlockedKeys, read_blocked_keys
from outbox.admin.durations import format_duration
from outbox.admin.failures import Failure, Failures, read_failures
from outbox.admin.lock_waits import Root, read_roots
from outbox.admin.periodic_jobs import PeriodicView, read_periodic_jobs
from outbox.admin.processes import breakers, is_silent, processes, without_ended_applications
from outbox.admin.queries import SCAN_LIMITS, ScanLimits, count_by_kind
from outbox.admin.recent_activity import Activity, activity_by_minute, last_hour, latency_quantiles
from outbox.destinations.controls import Controls, read_controls
from outbox.destinations.recorded_destinations import RecordedDestination, absent_names, read_recorded
from outbox.operations.count import COUNT_CAP, Count, total
from outbox.operations.filters import Filter
from outbox.storage import progress, timestamp
from outbox.storage.connection_errors import is_statement_timeout
from outbox.storage.dialect import Dialect
from outbox.storage.models import DELIVERED, EVENT, FAILED, KINDS, PENDING, SENDING, OutboxEvent
from outbox.storage.operator_models import Process
from outbox.storage.status import is_unfinished
from outbox.storage.timestamp import LATEST
from outbox.storage.waiting_events import count_parked
from outbox.telemetry.process_reports import SCHEDULER, UP, WORKER

# How long one statement of an overview may take.
STATEMENT_SECONDS = 5.0
# For how many unavailable destinations the waiting events are counted.
MOST_COUNTED = 10
# Up to how many events that have not ended, or have failed, are counted. All of them are read: the oldest may be the
# last of them. So this limits how long an overview takes during the longest outage.
BACKLOG_CAP = 1_000_000


@dataclass(frozen=True, slots=True)
class Backlog:
    """The events and jobs that have not ended, and how long the oldest of them has waited.

    `in_flight` counts those under a lease, `expired` those whose lease has expired, and `due` those that a worker could
    claim now. `pending_by_kind` and `in_flight_by_kind` have the kinds (event, job, run) that there are.

    `waiting` counts events that only wait behind others of their ordering key. They count as unfinished and pending,
    too. `oldest_created_at` leaves them out: `Overview.blocked` says how long they wait.
    """

    unfinished: Count
    due: Count
    in_flight: Count
    expired: Count
    waiting: Count
    oldest_created_at: datetime | None
    oldest_due_at: datetime | None
    # When the first of the expired leases ended.
    oldest_expired_at: datetime | None
    pending_by_kind: dict[str, Count]
    in_flight_by_kind: dict[str, Count]


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
    # The most frequent causes of failures, how many events were looked at for them, what is left out of the causes, and
    # how many events have failed at each destination.
    failures: list[Failure]
    failures_looked_at: Count
    more_causes: int
    more_failures: int
    failed_at: Mapping[str, Count]
    activity: list[Activity]
    latency: dict[float, float]
    breakers: dict[str, dict[str, Any]]
    processes: list[Process]
    # How many unfinished events wait for each destination whose circuit breaker is open.
    waiting_at: dict[str, Count]
    # The ordering keys whose events wait behind an earlier one.
    blocked: BlockedKeys
    # The destinations that workers have recorded, by name; and what operators have paused and throttled.
    recorded: Mapping[str, RecordedDestination]
    controls: Controls
    periodic: list[PeriodicView]
    # The sessions of PostgreSQL behind which others wait for locks.
    roots: tuple[Root, ...] = ()
    # Set if the events could not be read within this many seconds. Then nothing is known about them: counts are `0+`.
    events_unread: float = 0.0

    def describe(self, status: str) -> str:
        """Return, for example, `2 events`, `1 job` or `2 events and 1 job`: the rows with this status, by kind."""
        counts = {kind: counts[status] for kind, counts in self.counts_by_kind.items() if counts[status].number}
        words = [count.of(kind) for kind, count in (counts or {EVENT: Count(0)}).items()]
        return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))

    def failed(self, destination: str) -> Count:
        """Return how many events have failed at a destination; with `at_least` if older ones were not looked at."""
        return self.failed_at.get(destination, Count(0, self.failures_looked_at.at_least))

    @property
    def absent(self) -> list[str]:
        """Return the recorded destinations that no running worker has; events wait for them."""
        return absent_names(self.recorded, own=())

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
        return is_silent(process, self.now)


def overview(dialect: Dialect, cap: int = BACKLOG_CAP, seconds: float = STATEMENT_SECONDS) -> Overview:
    """Read the overview from the database; count up to `cap` events that have not ended, or have failed.

    If a statement on the events takes longer than `seconds`, because another session locks their table, the rest is
    still returned, with `events_unread`.
    """
    with dialect.bounded(seconds):
        now = dialect.now()
        roots = read_roots(dialect)
        reported = without_ended_applications(processes(dialect), now)
        minutes = last_hour(dialect, now)
        _, recorded = read_recorded(dialect)
        controls = read_controls(dialect)[0]
    unavailable = breakers(reported, now)
    events, events_unread = _UNREAD, 0.0
    try:
        with dialect.bounded(seconds, may_fail=True):
            events = _read_events(dialect, now, cap, sorted(unavailable)[:MOST_COUNTED])
    except peewee.OperationalError as error:
        if not is_statement_timeout(error):
            raise
        events_unread = seconds
        with dialect.bounded(seconds):
            roots = read_roots(dialect, locked=[dialect.tables.event])
    return Overview(
        now=now,
        counts={status: total(counts.values()) for status, counts in events.by_status.items()},
        counts_by_kind=_by_kind(events.by_status),
        backlog=events.backlog,
        failures=events.failures.causes,
        failures_looked_at=events.failures.looked_at,
        more_causes=events.failures.more_causes,
        more_failures=events.failures.more_events,
        failed_at=events.failures.by_destination,
        activity=activity_by_minute(minutes, now),
        latency=latency_quantiles(minutes),
        breakers=unavailable,
        waiting_at=events.waiting_at,
        processes=reported,
        blocked=events.blocked,
        recorded=recorded,
        controls=controls,
        periodic=events.periodic,
        roots=roots,
        events_unread=events_unread,
    )


@dataclass(frozen=True, slots=True)
class _Events:
    """The part of an overview that is read from the table of events."""

    by_status: dict[str, dict[str, Count]]
    backlog: Backlog
    failures: Failures
    waiting_at: dict[str, Count]
    blocked: BlockedKeys
    periodic: list[PeriodicView]


def _read_events(dialect: Dialect, now: datetime, cap: int, unavailable: Iterable[str]) -> _Events:
    waiting = backlog(dialect, now, cap)
    by_status = {
        PENDING: waiting.pending_by_kind,
        SENDING: waiting.in_flight_by_kind,
        DELIVERED: _count_delivered(dialect),
        FAILED: count_by_kind(dialect, Filter(status=FAILED), cap, ScanLimits(window=cap + 1)),
    }
    return _Events(
        by_status=by_status,
        backlog=waiting,
        failures=read_failures(dialect),
        waiting_at={name: count_waiting_at(dialect, name) for name in unavailable},
        blocked=read_blocked_keys(dialect),
        periodic=read_periodic_jobs(dialect),
    )


def _count_delivered(dialect: Dialect) -> dict[str, Count]:
    """Count delivered events among the newest of the table. If none of them is delivered, older ones may be: `0+`."""
    found, window = count_by_kind(dialect, Filter(status=DELIVERED)), SCAN_LIMITS.window
    has_older = not found and dialect.count(OutboxEvent.select(OutboxEvent.id).limit(window)) == window
    return found or {EVENT: Count(0, has_older)}


def _by_kind(by_status: Mapping[str, Mapping[str, Count]]) -> dict[str, dict[str, Count]]:
    """Return the counts by kind and status, given those by status and kind."""
    found = {kind for counts in by_status.values() for kind in counts}
    return {
        kind: {status: counts.get(kind, Count(0)) for status, counts in by_status.items()}
        for kind in KINDS
        if kind == EVENT or kind in found
    }


def backlog(dialect: Dialect, now: datetime, cap: int = BACKLOG_CAP) -> Backlog:
    """Count the events that have not ended, up to `cap`."""
    parameters = (timestamp.to_text(now), cap + 1)
    with dialect.connection():
        kinds = [_Waiting(*row) for row in dialect.run(dialect.statements.backlog, parameters).fetchall()]
        parked = count_parked(dialect, cap + 1)
    number = sum(each.number for each in kinds)
    more = number > cap
    due, in_flight = sum(each.due for each in kinds), sum(each.in_flight for each in kinds)
    pending = Counter({each.kind: each.number - each.in_flight for each in kinds}) + Counter({EVENT: parked})
    return Backlog(
        unfinished=Count.up_to(cap, number + parked),
        due=Count(min(due, cap), more),
        in_flight=Count(min(in_flight, cap), more),
        expired=Count(sum(each.expired for each in kinds), more),
        waiting=Count.up_to(cap, parked),
        oldest_created_at=_earliest(each.oldest_created_at for each in kinds),
        oldest_due_at=_earliest(each.oldest_due_at for each in kinds),
        oldest_expired_at=_earliest(each.oldest_expired_at for each in kinds),
        pending_by_kind=_counts(pending, cap, at_least=more),
        in_flight_by_kind=_counts(Counter({each.kind: each.in_flight for each in kinds}), cap, at_least=more),
    )


_UNKNOWN = Count(0, at_least=True)
_UNREAD = _Events(
    by_status={status: {EVENT: _UNKNOWN} for status in (PENDING, SENDING, DELIVERED, FAILED)},
    backlog=Backlog(
        unfinished=_UNKNOWN,
        due=_UNKNOWN,
        in_flight=_UNKNOWN,
        expired=_UNKNOWN,
        waiting=_UNKNOWN,
        oldest_created_at=None,
        oldest_due_at=None,
        oldest_expired_at=None,
        pending_by_kind={},
        in_flight_by_kind={},
    ),
    failures=Failures(_UNKNOWN, [], 0, 0, {}),
    waiting_at={},
    blocked=BlockedKeys(_UNKNOWN, None, []),
    periodic=[],
)


class _Waiting(NamedTuple):
    """A row of BACKLOG: the rows of a kind that have not ended."""

    kind: str
    number: int
    in_flight: int
    expired: int
    due: int
    oldest_created_at: Any
    oldest_due_at: Any
    oldest_expired_at: Any


def _earliest(times: Iterable[Any]) -> datetime | None:
    return min((timestamp.from_database(each) for each in times if each is not None), default=None)


def _counts(numbers: Counter[str], cap: int, *, at_least: bool) -> dict[str, Count]:
    return {kind: Count(min(n, cap), at_least or n > cap) for kind, n in numbers.items() if n}


def count_waiting_at(dialect: Dialect, destination: str) -> Count:
    """Return how many of the unfinished events wait for a destination that was tried; those due last are looked at."""
    event = OutboxEvent
    last = (
        event.select(event.progress)
        .where(*is_unfinished(), event.next_attempt_at < LATEST)
        .order_by(event.next_attempt_at.desc())
        .limit(COUNT_CAP + 1)
    )
    condition = progress.waits_at(destination, dialect.database)
    found = dialect.count(peewee.Select((last.alias("t1"),), (peewee.SQL("1"),)).where(condition))
    return Count.up_to(COUNT_CAP, found)
