"""Metrics for Prometheus: what all processes on all hosts have counted, and how things stand now.

The numbers are in the database, where every process publishes its own: any process can expose all of them, and one
scrape of one process is enough.
"""

from __future__ import annotations

import itertools
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from outbox.admin.overview import Overview, overview
from outbox.destinations.recorded_destinations import RecordedDestination, read_recorded
from outbox.errors import SchemaError, SettingsError
from outbox.operations.count import COUNT_CAP
from outbox.storage.connection_errors import CONNECTION_ERRORS
from outbox.storage.models import FAILED, PENDING, SENDING
from outbox.storage.operator_models import Process, Total
from outbox.telemetry.counters import BUCKETS
from outbox.telemetry.labels import Labels, labels_from_text
from outbox.telemetry.process_reports import APPLICATION, CONSUMER, SCHEDULER, UP, WORKER
from outbox.text import clean_label


class MissingPackage(SettingsError, ImportError):
    """An extra is not installed."""


try:
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Metric, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
except ImportError:
    raise MissingPackage("Metrics need prometheus-client: pip install 'dramatiq-outbox[metrics]'.") from None

if TYPE_CHECKING:
    from outbox.core import Outbox

__all__ = ["Collector", "exposition"]

logger = logging.getLogger("outbox")

CAPPED = f"counted up to {COUNT_CAP:,}"

# By name and labels.
Totals = dict[str, dict[Labels, float]]

# What is counted, by its name in the database.
COUNTERS = {
    "emitted": ("outbox_emitted", "Events that were emitted and committed."),
    "duplicates": ("outbox_duplicates", "Events that emit refused, or ignored, because their key was there already."),
    "claimed": ("outbox_claimed", "Events that workers claimed, each time that they did."),
    "delivered": ("outbox_delivered", "Events that reached all of their destinations."),
    "retried": ("outbox_retried", "Events that were put off, to be tried again or to wait for their turn."),
    "failed": ("outbox_failed", "Events that failed for good."),
    "fenced": ("outbox_fenced", "Outcomes that came after their lease was lost, and were not written."),
    "released": ("outbox_released", "Events that were given back before they had begun."),
    "drains_failed": (
        "outbox_drains_failed",
        "Drains that raised an error: without a connection, nothing is delivered.",
    ),
    "polls": ("outbox_polls", "Drains that workers began by themselves, without a wake-up or a sweep."),
    "skipped": ("outbox_inbox_skipped", "Messages that the inbox knew, and that were not handled again."),
}
OUTCOMES = ("delivered", "retry", "unavailable", "failed")
KINDS = (APPLICATION, CONSUMER, SCHEDULER, UP, WORKER)


def exposition(box: Outbox) -> tuple[bytes, str]:
    """What Prometheus scrapes, and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Strict(box))
    return generate_latest(registry), CONTENT_TYPE_LATEST


class Collector:
    """For an application's own registry: `REGISTRY.register(outbox.admin.metrics.Collector(outbox.current()))`.

    While the database can't be asked, it says `outbox_up 0` and nothing else, and leaves the other metrics alone.
    """

    def __init__(self, box: Outbox) -> None:
        self._box = box

    def describe(self) -> list[Metric]:
        """Names alone: to register must not ask the database."""
        return [*_counters({}), *_by_destination({}, ()), *_gauges(None), _absent(()), _up(1)]

    def collect(self) -> list[Metric]:
        try:
            return list(families(self._box))
        except (*CONNECTION_ERRORS, SchemaError) as error:
            logger.warning("metrics could not be collected: %s", str(error).strip())
            return [_up(0)]


class _Strict(Collector):
    def collect(self) -> list[Metric]:
        return list(families(self._box))


def families(box: Outbox) -> Iterator[Metric]:
    """Every metric, as the database has it now."""
    totals: Totals = defaultdict(dict)
    with box.dialect.connection():
        box.check_schema()
        view = overview(box.dialect)
        recorded = read_recorded(box.dialect)[1]
        for row in box.dialect.select(Total.select()):
            totals[row.name][labels_from_text(row.labels)] = row.value
    yield _up(1)
    yield from _counters(totals)
    yield from _by_destination(totals, _known(view.alive))
    yield from _gauges(view)
    yield _absent(recorded.values())


def _up(value: int) -> Metric:
    return GaugeMetricFamily("outbox_up", "Whether the outbox's database could be asked.", value=value)


def _counters(totals: Totals) -> Iterator[Metric]:
    """Those that nobody has counted yet are 0: a rate begins with the first."""
    for counted, (name, text) in COUNTERS.items():
        yield CounterMetricFamily(name, text, value=totals.get(counted, {}).get((), 0))
    latency = HistogramMetricFamily(
        "outbox_latency_seconds", "From when an event was committed, or first due, to its delivery everywhere."
    )
    _add_times(latency, [], totals, "latency", {})
    yield latency


def _by_destination(totals: Totals, known: Iterable[str]) -> Iterator[Metric]:
    counted = {dict(labels)["destination"] for labels in (*totals.get("outcomes", {}), *totals.get("send_sum", {}))}
    destinations = sorted({*known, *counted})
    outcomes = CounterMetricFamily(
        "outbox_outcomes", "What a destination has answered, for each event.", labels=["destination", "outcome"]
    )
    send = HistogramMetricFamily(
        "outbox_send_seconds",
        "From when a destination was given an event to its answer; one that takes many at once answers for all.",
        labels=["destination"],
    )
    for destination, outcome in itertools.product(destinations, OUTCOMES):
        labels = (("destination", destination), ("outcome", outcome))
        outcomes.add_metric([destination, outcome], totals.get("outcomes", {}).get(labels, 0))
    for destination in destinations:
        _add_times(send, [destination], totals, "send", {"destination": destination})
    yield outcomes
    yield send


def _add_times(
    family: HistogramMetricFamily, values: list[str], totals: Totals, name: str, labels: dict[str, str]
) -> None:
    """Each bucket holds what the ones before it hold, too."""
    counts = (
        totals.get(f"{name}_bucket", {}).get(tuple(sorted((labels | {"le": bucket}).items())), 0) for bucket in BUCKETS
    )
    cumulative = list(zip(BUCKETS, itertools.accumulate(counts), strict=True))
    sum_value = totals.get(f"{name}_sum", {}).get(tuple(labels.items()), 0.0)
    family.add_metric(values, buckets=cumulative, sum_value=sum_value)


def _known(alive: Iterable[Process]) -> list[str]:
    """What the workers that are there deliver to."""
    workers = (process for process in alive if process.kind in (WORKER, UP))
    return sorted({clean_label(name) for process in workers for name in process.details.get("destinations", {})})


def _gauges(view: Overview | None) -> Iterator[Metric]:
    """How things stand; without a view, the names alone."""
    counts = {} if view is None else {name: count.number for name, count in view.counts.items()}
    due = 0 if view is None else view.backlog.due.number
    expired = 0 if view is None else view.backlog.expired.number
    yield _gauge("outbox_pending_events", f"Events that wait, due or not; {CAPPED}.", counts.get(PENDING, 0))
    yield _gauge("outbox_due_events", f"Events that could be delivered now; {CAPPED}.", due)
    yield _gauge("outbox_in_flight_events", f"Events that a worker holds; {CAPPED}.", counts.get(SENDING, 0))
    yield _gauge(
        "outbox_failed_events", f"Events that have failed for good and are kept; {CAPPED}.", counts.get(FAILED, 0)
    )
    yield _gauge("outbox_expired_leases", f"Events whose worker died or fell silent; {CAPPED}.", expired)
    yield _gauge(
        "outbox_oldest_pending_seconds",
        f"Since when the oldest unfinished event has been there, among the first {COUNT_CAP:,}; 0 without any.",
        0.0 if view is None else _age(view, view.backlog.oldest_created_at),
    )
    yield _gauge(
        "outbox_oldest_due_seconds",
        "Since when the event that has been due for longest waits for a worker; 0 without any.",
        0.0 if view is None else _age(view, view.backlog.oldest_due_at),
    )
    yield _breakers(view)
    processes = GaugeMetricFamily("outbox_processes", "Processes that were heard of lately.", labels=["kind"])
    kinds = [] if view is None else [process.kind for process in view.alive]
    for kind in KINDS:
        processes.add_metric([kind], kinds.count(kind))
    yield processes
    yield _gauge(
        "outbox_workers_without_broker",
        "Workers that can't reach their broker, and look for due events by themselves.",
        0 if view is None else len(view.without_broker),
    )


def _breakers(view: Overview | None) -> Metric:
    family = GaugeMetricFamily(
        "outbox_breaker_open", "1 while a destination is left alone since it can't be reached.", labels=["destination"]
    )
    if view is not None:
        is_open = {clean_label(name) for name, state in view.breakers.items() if state.get("open")}
        for destination in sorted({*_known(view.alive), *is_open}):
            family.add_metric([destination], int(destination in is_open))
    return family


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


def _age(view: Overview, since: datetime | None) -> float:
    return 0.0 if since is None else max(0.0, (view.now - since).total_seconds())


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)
