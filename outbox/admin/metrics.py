"""Metrics for Prometheus: the counters of all processes on all hosts, and the state of the outbox.

Every process reports its counters to the database. So any process can expose the counters of all processes, and
Prometheus has to scrape only one. The dashboard, `outbox metrics` and the application's own registry expose them.
"""

from __future__ import annotations

import itertools
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING

import peewee

from outbox.admin.controls_view import shown_name
from outbox.admin.overview import BACKLOG_CAP, STATEMENT_SECONDS, Overview, overview
from outbox.admin.periodic_jobs import PeriodicView, read_periodic_jobs
from outbox.admin.streams import stream_groups
from outbox.destinations.controls import EVERYTHING
from outbox.destinations.recorded_destinations import RecordedDestination, read_recorded
from outbox.errors import SchemaError, SettingsError, as_sentence
from outbox.operations.count import COUNT_CAP
from outbox.storage.connection_errors import CONNECTION_ERRORS
from outbox.storage.models import FAILED, PENDING, SENDING
from outbox.storage.operator_models import Process, Total
from outbox.telemetry.counters import BUCKETS
from outbox.telemetry.labels import Labels, labels_from_text
from outbox.telemetry.process_reports import APPLICATION, CONSUMER, SCHEDULER, UP, WORKER
from outbox.text import clean_label


class MissingPackage(SettingsError, ImportError):
    """The package of an extra is not installed."""


try:
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Metric, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
except ImportError:
    raise MissingPackage("Metrics need prometheus-client: pip install 'dramatiq-outbox[metrics]'.") from None

if TYPE_CHECKING:
    from outbox.core import Outbox

__all__ = ["Collector", "exposition"]

logger = logging.getLogger(__name__)

CAPPED = f"counted up to {BACKLOG_CAP:,}"
CAPPED_KEYS = f"counted up to {COUNT_CAP:,}"

# The values of the counters, by name and labels.
Totals = dict[str, dict[Labels, float]]

# By the name of the counter in the database: the name and the help text of the metric.
COUNTERS = {
    "emitted": ("outbox_emitted", "Events and jobs that were stored and committed."),
    "duplicates": (
        "outbox_duplicates",
        "Events that emit rejected or ignored because their idempotency key existed already.",
    ),
    "claimed": ("outbox_claimed", "Events that workers claimed; an event counts each time that it is claimed."),
    "delivered": ("outbox_delivered", "Events that were delivered to all their destinations."),
    "retried": ("outbox_retried", "Events that were tried without success and are tried again later."),
    "put_off": (
        "outbox_put_off",
        "Events that were not tried, and wait: a circuit breaker was open, a destination paused, or a limit reached.",
    ),
    "failed": ("outbox_failed", "Events that failed and are not tried again."),
    "held_back": (
        "outbox_held_back",
        "Events that were put off until an earlier event of their ordering key has ended; once for each time.",
    ),
    "fenced": ("outbox_fenced", "Outcomes that were not written because the worker had lost its lease before."),
    "released": ("outbox_released", "Claimed events that workers released before they tried to deliver them."),
    "drains_failed": (
        "outbox_drains_failed",
        "Drains that raised an error, for example because there was no database connection.",
    ),
    "polls": ("outbox_polls", "Drains that workers started by polling, without a wake-up or a sweep."),
    "skipped": ("outbox_inbox_skipped", "Messages that the inbox skipped because they were processed already."),
}
# Likewise, of jobs. They are labelled with the actor.
JOB_COUNTERS = {
    "jobs_stored": ("outbox_jobs_stored", "Jobs that were sent and committed."),
    "jobs_enqueued": ("outbox_jobs_enqueued", "Jobs that were enqueued on the broker of their actor."),
    "jobs_failed": ("outbox_jobs_failed", "Jobs that could not be enqueued and are not tried again."),
}
OUTCOMES = ("delivered", "retry", "unavailable", "failed")
KINDS = (APPLICATION, CONSUMER, SCHEDULER, UP, WORKER)


def exposition(box: Outbox) -> tuple[bytes, str]:
    """Return the body and the content type of the response to a scrape: `outbox_up 0` if the database can't be read.

    An error as the response would leave Prometheus without `outbox_up`, and its most important alert could not fire.
    """
    return expose(Collector(box)), CONTENT_TYPE_LATEST


def expose(collector: Collector) -> bytes:
    """Return the metrics of one collector in the text format of Prometheus."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)


class Collector:
    """A collector for the application's registry: `REGISTRY.register(Collector(outbox.current()))`.

    While the database can't be read, it exposes `outbox_up 0` only; the application's other metrics are not affected.
    """

    def __init__(self, box: Outbox) -> None:
        self._box = box
        # Why the database could not be read the last time; None if it could.
        self.error: Exception | None = None

    def describe(self) -> list[Metric]:
        """Return the metrics without reading their values, because registering must not query the database."""
        known = [*_counters({}), *_by_destination({}, ()), *_by_actor({})]
        return [*known, *_gauges(None), _absent(()), _overdue(()), _up(1)]

    def collect(self) -> list[Metric]:
        """Return the metrics, or `outbox_up 0` only if the database can't be read."""
        try:
            found = list(families(self._box))
        except (*CONNECTION_ERRORS, SchemaError) as error:
            self.error = error
            logger.warning("Could not collect the metrics, since the database can't be read: %s", as_sentence(error))
            return [_up(0)]
        self.error = None
        return found


def families(box: Outbox) -> Iterator[Metric]:
    """Yield every metric, read from the database."""
    totals: Totals = defaultdict(dict)
    with box.dialect.connection():
        box.check_schema()
        view = overview(box.dialect, seconds=STATEMENT_SECONDS)
        if view.events_unread:
            blockers = ", ".join(each.name for each in view.roots) or "no lock"
            raise peewee.OperationalError(
                f"the events could not be read within {view.events_unread:g} s; what holds it up: {blockers}"
            )
        recorded = read_recorded(box.dialect)[1]
        periodic_jobs = read_periodic_jobs(box.dialect)
        for row in box.dialect.select(Total.select()):
            totals[row.name][labels_from_text(row.labels)] = row.value
    yield _up(1)
    yield from _counters(totals)
    yield from _by_destination(totals, _destination_names(view.alive))
    yield from _by_actor(totals)
    yield from _gauges(view)
    yield _absent(recorded.values())
    yield _overdue(periodic_jobs)


def _up(value: int) -> Metric:
    return GaugeMetricFamily("outbox_up", "1 if the outbox's database could be read, else 0.", value=value)


def _counters(totals: Totals) -> Iterator[Metric]:
    """Yield the counters. A counter without a value is 0, so that a rate in Prometheus includes its first increment."""
    for counted, (name, text) in COUNTERS.items():
        yield CounterMetricFamily(name, text, value=totals.get(counted, {}).get((), 0))
    latency = HistogramMetricFamily(
        "outbox_latency_seconds",
        "Time from the commit, or from the first due time if that is later, to the delivery to all destinations.",
    )
    _add_histogram(latency, [], totals, "latency", {})
    yield latency


def _by_destination(totals: Totals, known: Iterable[str]) -> Iterator[Metric]:
    counted = {dict(labels)["destination"] for labels in (*totals.get("outcomes", {}), *totals.get("send_sum", {}))}
    destinations = sorted({*known, *counted})
    outcomes = CounterMetricFamily(
        "outbox_outcomes",
        "Outcomes of deliveries, one for each event and destination.",
        labels=["destination", "outcome"],
    )
    send = HistogramMetricFamily(
        "outbox_send_seconds",
        "Time that a destination took for an event; if it takes many events at once, the time for all of them.",
        labels=["destination"],
    )
    for destination, outcome in itertools.product(destinations, OUTCOMES):
        labels = (("destination", destination), ("outcome", outcome))
        outcomes.add_metric([destination, outcome], totals.get("outcomes", {}).get(labels, 0))
    for destination in destinations:
        _add_histogram(send, [destination], totals, "send", {"destination": destination})
    yield outcomes
    yield send


def _by_actor(totals: Totals) -> Iterator[Metric]:
    """Yield the counters of jobs. An actor that one of them has is in all of them, with 0."""
    actors = sorted({labels for counted in JOB_COUNTERS for labels in totals.get(counted, {})})
    for counted, (name, text) in JOB_COUNTERS.items():
        family = CounterMetricFamily(name, text, labels=["actor"])
        for labels in actors:
            family.add_metric([dict(labels)["actor"]], totals.get(counted, {}).get(labels, 0))
        yield family


def _add_histogram(
    family: HistogramMetricFamily, values: list[str], totals: Totals, name: str, labels: dict[str, str]
) -> None:
    """Add a histogram's buckets. The database has one count per bucket; Prometheus expects cumulative counts."""
    counts = (
        totals.get(f"{name}_bucket", {}).get(tuple(sorted((labels | {"le": bucket}).items())), 0) for bucket in BUCKETS
    )
    cumulative = list(zip(BUCKETS, itertools.accumulate(counts), strict=True))
    sum_value = totals.get(f"{name}_sum", {}).get(tuple(labels.items()), 0.0)
    family.add_metric(values, buckets=cumulative, sum_value=sum_value)


def _destination_names(alive: Iterable[Process]) -> list[str]:
    """Return the destinations of the running workers."""
    workers = (process for process in alive if process.kind in (WORKER, UP))
    return sorted({clean_label(name) for process in workers for name in process.details.get("destinations", {})})


def _gauges(view: Overview | None) -> Iterator[Metric]:
    """Yield the gauges. Without a view their values are 0, which is enough to describe them."""
    counts = {} if view is None else {name: count.number for name, count in view.counts.items()}
    due = 0 if view is None else view.backlog.due.number
    expired = 0 if view is None else view.backlog.expired.number
    yield _gauge(
        "outbox_pending_events",
        f"Events and jobs that wait for their first or next attempt, due or not; {CAPPED}.",
        counts.get(PENDING, 0),
    )
    yield _gauge("outbox_due_events", f"Events and jobs that are due and that a worker could claim now; {CAPPED}.", due)
    yield _gauge(
        "outbox_in_flight_events", f"Events and jobs that a worker holds a lease on; {CAPPED}.", counts.get(SENDING, 0)
    )
    yield _gauge(
        "outbox_failed_events",
        f"Events and jobs that have failed, are not tried again, and are not deleted yet; {CAPPED}.",
        counts.get(FAILED, 0),
    )
    yield _gauge(
        "outbox_expired_leases", f"Events whose lease expired and that no worker has claimed since; {CAPPED}.", expired
    )
    yield _gauge(
        "outbox_oldest_pending_seconds",
        "Age of the oldest event that has not ended, without those that only wait behind others of their ordering key; "
        "0 if there is none.",
        0.0 if view is None else _age(view, view.backlog.oldest_created_at),
    )
    yield _gauge(
        "outbox_oldest_due_seconds",
        "How long the event that has been due for longest has been due; 0 if none is due.",
        0.0 if view is None else _age(view, view.backlog.oldest_due_at),
    )
    yield from _order(view)
    yield _breakers(view)
    yield _pauses(view)
    yield _processes(view)
    yield from _streams(view)
    yield _gauge(
        "outbox_workers_without_broker",
        "Workers that can't reach their broker, and poll for due events.",
        0 if view is None else len(view.without_broker),
    )


def _order(view: Overview | None) -> Iterator[Metric]:
    yield _gauge(
        "outbox_blocked_keys",
        f"Ordering keys whose events wait behind an earlier one, counted once for each destination; {CAPPED_KEYS}.",
        0 if view is None else view.blocked.count.number,
    )
    yield _gauge(
        "outbox_waiting_events",
        f"Events that only wait behind earlier events of their ordering key; {CAPPED}.",
        0 if view is None else view.backlog.waiting.number,
    )
    yield _gauge(
        "outbox_oldest_blocked_key_seconds",
        "How long the ordering key that has been blocked for longest has been blocked; 0 if none is.",
        0.0 if view is None else _age(view, view.blocked.since),
    )


def _breakers(view: Overview | None) -> Metric:
    family = GaugeMetricFamily(
        "outbox_breaker_open",
        "1 while the circuit breaker of a destination is open, since the destination is unavailable.",
        labels=["destination"],
    )
    if view is not None:
        is_open = {clean_label(name) for name, state in view.breakers.items() if state.get("open")}
        for destination in sorted({*_destination_names(view.alive), *is_open}):
            family.add_metric([destination], int(destination in is_open))
    return family


def _pauses(view: Overview | None) -> Metric:
    family = GaugeMetricFamily(
        "outbox_paused_seconds",
        "For how long an operator has paused a destination; 0 if it is not paused.",
        labels=["destination"],
    )
    if view is not None:
        pauses = {clean_label(shown_name(name)): pause for name, pause in view.controls.pauses.items()}
        for destination in sorted({*_destination_names(view.alive), *pauses, shown_name(EVERYTHING)}):
            pause = pauses.get(destination)
            is_paused = pause is not None and pause.is_active(view.now)
            family.add_metric([destination], pause.seconds(view.now) if pause is not None and is_paused else 0.0)
    return family


def _processes(view: Overview | None) -> Metric:
    family = GaugeMetricFamily(
        "outbox_processes", "Running processes: those that have reported lately.", labels=["kind"]
    )
    kinds = [] if view is None else [process.kind for process in view.alive]
    for kind in KINDS:
        family.add_metric([kind], kinds.count(kind))
    return family


def _streams(view: Overview | None) -> Iterator[Metric]:
    behind = GaugeMetricFamily(
        "outbox_consumer_behind",
        "Entries of a stream or queue that no consumer was given yet, as its running consumers report.",
        labels=["stream", "group"],
    )
    pending = GaugeMetricFamily(
        "outbox_consumer_pending",
        "Entries of a stream or queue that were given to a consumer and are not acknowledged; of a queue, those of the "
        "consumers that report here.",
        labels=["stream", "group"],
    )
    for each in [] if view is None else stream_groups(view.alive, view.now):
        labels = [clean_label(each.stream), clean_label(each.group)]
        behind.add_metric(labels, each.behind)
        pending.add_metric(labels, each.pending)
    yield behind
    yield pending


def _absent(recorded: Iterable[RecordedDestination]) -> Metric:
    family = GaugeMetricFamily(
        "outbox_destination_absent",
        "1 while no running worker has a destination that was recorded and not retired.",
        labels=["destination"],
    )
    for each in recorded:
        if not each.retired:
            family.add_metric([clean_label(each.name)], int(not each.alive))
    return family


def _overdue(jobs: Iterable[PeriodicView]) -> Metric:
    family = GaugeMetricFamily(
        "outbox_periodic_overdue_seconds",
        "How long ago the next run of a periodic job should have been stored; 0 if it is not due yet, or paused.",
        labels=["periodic_job"],
    )
    for view in jobs:
        family.add_metric([clean_label(view.job.name)], view.overdue_seconds)
    return family


def _age(view: Overview, since: datetime | None) -> float:
    return 0.0 if since is None else max(0.0, (view.now - since).total_seconds())


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)
