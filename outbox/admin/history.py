"""Read what happened in the last hour, day or week: counts and latencies over time.

The counts are those of all events, of one event type, of one destination or of one actor. Processes add their counts to
the table outbox_minute: for the minute, for the quarter of an hour and for the hour. Each range reads the counts of one
of these periods, and only the rows that it shows, even if there are many destinations and types.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from outbox.admin.recent_activity import QUANTILES, bound_at
from outbox.storage.dialect import Dialect
from outbox.storage.operator_models import Minute
from outbox.telemetry.counters import BUCKETS
from outbox.telemetry.labels import labels_as_text, labels_from_text

TYPE, DESTINATION, ACTOR = "type", "destination", "actor"


@dataclass(frozen=True, slots=True)
class Range:
    """A range of time that ends now: how many bars its chart has, and how many stored counts make a bar."""

    name: str
    label: str
    bars: int
    # The prefix of the names of the counts for this period, and how long the period lasts.
    prefix: str
    period: timedelta
    periods_per_bar: int = 1

    @property
    def bar(self) -> timedelta:
        return self.period * self.periods_per_bar


HOUR = Range("1h", "Last hour", 60, "", timedelta(minutes=1))
DAY = Range("24h", "Last 24 hours", 96, "quarter:", timedelta(minutes=15))
WEEK = Range("7d", "Last 7 days", 84, "hour:", timedelta(hours=1), periods_per_bar=2)
RANGES = {each.name: each for each in (HOUR, DAY, WEEK)}


@dataclass(frozen=True, slots=True)
class Scope:
    """What the counts are of: a type, a destination or an actor, by its name. Without a kind: everything."""

    kind: str = ""
    name: str = ""


EVERYTHING = Scope()


@dataclass(frozen=True, slots=True)
class Point:
    """One bar: what was counted from `begins_at` to `ends_at`. If `is_running`, that time is not over yet.

    `retried`: attempts that did not succeed, after which the event waits. `quantiles` are empty if nothing was timed.
    """

    begins_at: datetime
    ends_at: datetime
    is_running: bool
    emitted: int
    delivered: int
    retried: int
    failed: int
    quantiles: Mapping[float, float]


@dataclass(frozen=True, slots=True)
class History:
    """The points of a range, the oldest first, and their sums.

    `has_emitted` and `has_latency` are false if emitted events, or times, are not counted for the scope.
    """

    over: Range
    scope: Scope
    points: Sequence[Point]
    quantiles: Mapping[float, float]
    has_emitted: bool
    has_latency: bool

    @property
    def emitted(self) -> int:
        return sum(point.emitted for point in self.points)

    @property
    def delivered(self) -> int:
        return sum(point.delivered for point in self.points)

    @property
    def retried(self) -> int:
        return sum(point.retried for point in self.points)

    @property
    def failed(self) -> int:
        return sum(point.failed for point in self.points)

    @property
    def is_empty(self) -> bool:
        return not (self.emitted or self.delivered or self.retried or self.failed)

    @property
    def per_second(self) -> float:
        """Return how many were delivered a second, on average."""
        return self.delivered / (self.over.bar * self.over.bars).total_seconds()

    @property
    def success(self) -> float | None:
        """Return the part of the attempts that succeeded; None without attempts."""
        tried = self.delivered + self.retried + self.failed
        return self.delivered / tried if tried else None


@dataclass(frozen=True, slots=True)
class _Series:
    """The names and labels under which the counts of a scope are stored, and what each of them counts."""

    # By name: what each text of labels counts.
    counts: Mapping[str, Mapping[str, str]]
    # The name of the buckets of times, and the labels that they have besides the bucket; None if there are none.
    times: tuple[str, Mapping[str, str]] | None = None


def _series_of(scope: Scope) -> _Series:
    if scope.kind == DESTINATION:
        outcomes = {"delivered": "delivered", "retry": "retried", "unavailable": "retried", "failed": "failed"}
        labelled = {_text(destination=scope.name, outcome=each): field for each, field in outcomes.items()}
        return _Series({"outcomes": labelled}, ("send_bucket", {"destination": scope.name}))
    if scope.kind == TYPE:
        label = _text(type=scope.name)
        counts = {"types_delivered": {label: "delivered"}, "types_failed": {label: "failed"}}
        return _Series(counts, ("type_bucket", {"type": scope.name}))
    if scope.kind == ACTOR:
        label = _text(actor=scope.name)
        fields = {"jobs_stored": "emitted", "jobs_enqueued": "delivered", "jobs_failed": "failed"}
        return _Series({name: {label: field} for name, field in fields.items()})
    names = ("emitted", "delivered", "retried", "failed")
    return _Series({name: {"": name} for name in names}, ("latency_bucket", {}))


def _text(**labels: str) -> str:
    return labels_as_text(tuple(labels.items()))


def read_history(dialect: Dialect, now: datetime, over: Range = HOUR, scope: Scope = EVERYTHING) -> History:
    """Return what happened to a scope in a range that ends now."""
    series = _series_of(scope)
    last = _floor(now, over.bar)
    begins = [last - over.bar * (over.bars - 1 - number) for number in range(over.bars)]
    moments = [begin + over.period * number for begin in begins for number in range(over.periods_per_bar)]
    with dialect.connection():
        counts = _read_counts(dialect, over, moments, series)
        # Of types, nothing shorter is stored than the quarter of an hour: each minute shows what its quarter has.
        timed = DAY if scope.kind == TYPE and over is HOUR else over
        periods = sorted({_floor(each, timed.period) for each in moments})
        times = {} if series.times is None else _read_times(dialect, timed, periods, *series.times)
    together = _quantiles(sum(times.values(), Counter()))
    if timed is not over:
        with_delivered = [each for each in begins if counts[each]["delivered"]]
        times = {each: times.get(_floor(each, timed.bar), Counter()) for each in with_delivered}
    points = [
        Point(
            begins_at=begin,
            ends_at=begin + over.bar,
            is_running=begin == last,
            quantiles=_quantiles(times.get(begin, Counter())),
            **{name: counts[begin][name] for name in ("emitted", "delivered", "retried", "failed")},
        )
        for begin in begins
    ]
    fields = {field for labelled in series.counts.values() for field in labelled.values()}
    return History(over, scope, points, together, "emitted" in fields, series.times is not None)


def _read_counts(
    dialect: Dialect, over: Range, moments: Sequence[datetime], series: _Series
) -> Mapping[datetime, Counter[str]]:
    """Return the counts by the start of the bar. Each row is found by its whole key: the time, the name, the labels."""
    names = {over.prefix + name: labelled for name, labelled in series.counts.items()}
    labels = {text for labelled in names.values() for text in labelled}
    query = Minute.select(Minute.minute, Minute.name, Minute.labels, Minute.value).where(
        Minute.minute.in_(moments), Minute.name.in_(list(names)), Minute.labels.in_(list(labels))
    )
    found: defaultdict[datetime, Counter[str]] = defaultdict(Counter)
    for minute, name, text, value in dialect.select(query.tuples()):
        field = names[name].get(text)
        if field is not None:
            found[_floor(minute, over.bar)][field] += int(value)
    return found


def _read_times(
    dialect: Dialect, over: Range, moments: Sequence[datetime], name: str, about: Mapping[str, str]
) -> dict[datetime, Counter[str]]:
    """Return how many times were in each bucket, by the start of the bar."""
    labels = [_text(**about, le=bucket) for bucket in BUCKETS]
    query = Minute.select(Minute.minute, Minute.labels, Minute.value).where(
        Minute.minute.in_(moments), Minute.name == over.prefix + name, Minute.labels.in_(labels)
    )
    found: defaultdict[datetime, Counter[str]] = defaultdict(Counter)
    for minute, text, value in dialect.select(query.tuples()):
        found[_floor(minute, over.bar)][dict(labels_from_text(text))["le"]] += int(value)
    return dict(found)


def _quantiles(buckets: Counter[str]) -> dict[float, float]:
    counted = buckets.total()
    return {each: bound_at(buckets, each * counted) for each in QUANTILES} if counted else {}


def _floor(moment: datetime, span: timedelta) -> datetime:
    """Return the start of the span of time that contains the moment. Spans are counted from 1970 on, in UTC."""
    seconds = int(span.total_seconds())
    return datetime.fromtimestamp(int(moment.timestamp()) // seconds * seconds, UTC)
