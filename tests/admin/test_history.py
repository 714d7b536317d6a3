"""What happened over time: each count is in its bar, in every range, and of the scope that was asked for."""

from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any

import pytest

import outbox
from outbox.admin.history import ACTOR, DAY, DESTINATION, EVERYTHING, HOUR, RANGES, TYPE, WEEK, Range, Scope
from outbox.admin.history import read_history as read
from outbox.core import Outbox
from outbox.storage.operator_models import Minute
from outbox.storage.retention import delete_old_records
from outbox.telemetry.counters import MOST_NAMES
from outbox.telemetry.labels import labels_as_text
from tests.support.jobs import send
from tests.support.table import emit

NOW = datetime(2026, 3, 1, 13, 37, 42, tzinfo=UTC)


def store(box: Outbox, over: Range, moment: datetime, name: str, value: int, **labels: str) -> None:
    """Store a count as a report does, for the period that contains the moment."""
    seconds = int(over.period.total_seconds())
    begin = datetime.fromtimestamp(int(moment.timestamp()) // seconds * seconds, UTC)
    Minute.bind(box.database)
    text = labels_as_text(tuple(labels.items()))
    Minute.create(minute=begin, name=over.prefix + name, labels=text, value=value)


@pytest.mark.parametrize("over", RANGES.values(), ids=RANGES)
def test_the_first_and_the_last_period_are_in_the_first_and_the_last_bar(box: Outbox, over: Range) -> None:
    points = read(box.dialect, NOW, over).points
    assert len(points) == over.bars
    assert points[-1].begins_at <= NOW < points[-1].ends_at
    assert [point.is_running for point in points] == [False] * (over.bars - 1) + [True]
    first = points[0].begins_at
    for moment, value in ((first - over.period, 1), (first, 2), (NOW, 4), (points[-1].ends_at, 8)):
        store(box, over, moment, "delivered", value)
    history = read(box.dialect, NOW, over)
    assert [point.delivered for point in history.points] == [2, *[0] * (over.bars - 2), 4]
    assert history.delivered == 6


def test_periods_add_up_to_a_bar(box: Outbox) -> None:
    for number, value in enumerate((1, 2, 4)):
        store(box, WEEK, NOW.replace(hour=10) + timedelta(hours=number), "failed", value)
    assert [point.failed for point in read(box.dialect, NOW, WEEK).points[-2:]] == [3, 4]


def test_the_counts_of_one_range_are_not_in_another(box: Outbox) -> None:
    for over, value in ((HOUR, 1), (DAY, 2), (WEEK, 4)):
        store(box, over, NOW.replace(hour=12, minute=45), "emitted", value)
    assert [read(box.dialect, NOW, over).emitted for over in (HOUR, DAY, WEEK)] == [1, 2, 4]


@pytest.mark.parametrize(
    ("scope", "series", "expected"),
    [
        (Scope(TYPE, "a"), [("types_delivered", {"type": "a"}), ("types_failed", {"type": "a"})], (0, 1, 0, 1)),
        (
            Scope(DESTINATION, "a"),
            [
                ("outcomes", {"destination": "a", "outcome": each})
                for each in ("delivered", "retry", "unavailable", "failed")
            ],
            (0, 1, 2, 1),
        ),
        (
            Scope(ACTOR, "a"),
            [(name, {"actor": "a"}) for name in ("jobs_stored", "jobs_enqueued", "jobs_failed")],
            (1, 1, 0, 1),
        ),
    ],
    ids=lambda each: getattr(each, "kind", ""),
)
def test_a_subject_has_its_own_counts(
    box: Outbox, scope: Scope, series: list[tuple[str, dict[str, str]]], expected: tuple[int, ...]
) -> None:
    for name, labels in series:
        store(box, HOUR, NOW, name, 1, **labels)
        store(box, HOUR, NOW, name, 10, **{key: value.replace("a", "another", 1) for key, value in labels.items()})
    store(box, HOUR, NOW, "delivered", 100)
    history = read(box.dialect, NOW, HOUR, scope)
    assert (history.emitted, history.delivered, history.retried, history.failed) == expected


def test_quantiles_are_the_bounds_of_buckets_by_bar_and_together(box: Outbox) -> None:
    for minutes, le, value in ((1, "0.05", 90), (1, "1", 10), (0, "+Inf", 1)):
        store(box, HOUR, NOW - timedelta(minutes=minutes), "latency_bucket", value, le=le)
    history = read(box.dialect, NOW, HOUR)
    before, running = history.points[-2:]
    assert (before.quantiles, running.quantiles[0.5]) == ({0.5: 0.05, 0.95: 1.0, 0.99: 1.0}, inf)
    assert history.quantiles[0.5] == 0.05
    assert history.points[0].quantiles == {}
    store(box, HOUR, NOW, "send_bucket", 1, destination="crm", le="5")
    assert read(box.dialect, NOW, HOUR, Scope(DESTINATION, "crm")).quantiles[0.95] == 5.0


def test_a_type_has_latencies_which_are_those_of_the_quarter_of_an_hour_in_the_shortest_range(box: Outbox) -> None:
    of_type = Scope(TYPE, "a")
    for over, value in ((DAY, 3), (WEEK, 5)):
        store(box, over, NOW, "type_bucket", value, type="a", le="0.25")
        store(box, over, NOW, "type_bucket", value, type="b", le="30")
    store(box, HOUR, NOW, "types_delivered", 2, type="a")
    for over in (HOUR, DAY, WEEK):
        history = read(box.dialect, NOW, over, of_type)
        assert history.quantiles[0.95] == history.points[-1].quantiles[0.95] == 0.25
        assert history.points[-2].quantiles == {}  # nothing of this type was delivered then


def test_the_history_of_many_types_is_a_limited_number_of_rows(box: Outbox) -> None:
    outbox.handler("*", name="all")(lambda event: None)
    with box.database.atomic():
        for number in range(MOST_NAMES + 50):
            outbox.emit("Order", number, f"type.{number:03}")
    while box.process_pending_events()["processed"]:
        pass
    box.reporter.report_now()
    with box.dialect.connection():
        names = [row.name for row in box.dialect.select(Minute.select())]
    # One row for each of the types and one for the others, in each period; and the bucket of the times that they took.
    assert names.count("types_delivered") == names.count("hour:types_delivered") == MOST_NAMES + 1
    assert names.count("type_bucket") == 0
    assert MOST_NAMES < names.count("hour:type_bucket") <= 3 * (MOST_NAMES + 1)


def test_what_is_delivered_is_reported_for_the_minute_the_quarter_and_the_hour(box: Outbox, charge: Any) -> None:
    @outbox.handler("bad", name="bad")
    def refuse(event: outbox.Event) -> None:
        raise outbox.Reject("no")

    outbox.handler("good", name="good")(lambda event: None)
    emit(3, "good")
    emit(2, "bad")
    send(charge, 1)
    box.process_pending_events()
    box.reporter.report_now()
    now = box.dialect.now()
    for over in RANGES.values():
        together = read(box.dialect, now, over)
        assert (together.emitted, together.delivered, together.failed) == (6, 4, 2)
        found = {
            kind: [(each.delivered, each.failed) for each in (read(box.dialect, now, over, Scope(kind, name)),)]
            for kind, name in ((TYPE, "good"), (DESTINATION, "bad"), (ACTOR, "charge"))
        }
        assert found == {TYPE: [(3, 0)], DESTINATION: [(0, 2)], ACTOR: [(1, 0)]}
        assert together.has_latency
        assert together.quantiles


def test_hours_are_kept_for_longer_than_minutes(box: Outbox) -> None:
    now = box.dialect.now()
    for days in (0, 1, 3, 9):
        for over in RANGES.values():
            store(box, over, now - timedelta(days=days), "emitted", days)
    delete_old_records(box.dialect, 168)
    with box.dialect.connection():
        kept = sorted(box.dialect.select(Minute.select(Minute.name, Minute.value).tuples()))
    minutes = [("emitted", 0)]
    quarters = [("quarter:emitted", 0), ("quarter:emitted", 1)]
    assert kept == [*minutes, ("hour:emitted", 0), ("hour:emitted", 1), ("hour:emitted", 3), *quarters]


def test_only_the_rows_that_are_shown_are_read_however_many_others_there_are(box: Outbox) -> None:
    """Each row is found by its whole key."""
    for number in range(300):
        store(box, WEEK, NOW, "outcomes", 1, destination=f"d{number}", outcome="delivered")
    is_postgres = box.dialect.name == "postgres"
    explain = "EXPLAIN " if is_postgres else "EXPLAIN QUERY PLAN "
    execute: Any = box.database.execute_sql
    seen: list[str] = []

    def remember(sql: str, parameters: Any = None, *more: Any) -> Any:
        if sql.startswith("SELECT") and "minute" in sql:
            seen.append(" ".join(str(row) for row in execute(explain + sql, parameters).fetchall()))
        return execute(sql, parameters, *more)

    with box.dialect.connection(), box.dialect.atomic(), pytest.MonkeyPatch.context() as patch:
        if is_postgres:
            execute("ANALYZE outbox_minute")
            execute("SET LOCAL enable_seqscan = off")
        patch.setattr(box.database, "execute_sql", remember)
        history = read(box.dialect, NOW, WEEK, Scope(DESTINATION, "d7"))
    assert history.delivered == 1
    assert len(seen) == 2
    for plan in seen:
        assert all(name in plan for name in ("minute", "name", "labels")), plan
        assert "Seq Scan" not in plan
        assert "SCAN" not in plan


def test_everything_is_the_default(box: Outbox) -> None:
    store(box, HOUR, NOW, "retried", 3)
    assert read(box.dialect, NOW) == read(box.dialect, NOW, HOUR, EVERYTHING)
    assert read(box.dialect, NOW).retried == 3
