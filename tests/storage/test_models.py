"""The model: the table as queries and reports see it, the same on both databases."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import peewee
import pytest
from hypothesis import given
from hypothesis import strategies as st

import outbox
from outbox import OutboxEvent
from outbox.core import Outbox
from outbox.storage import timestamp
from outbox.storage.models import STATUSES
from tests.conftest import is_postgres

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
# The same times in other timezones: as texts they would not sort like the times.
MOMENTS = [
    NOON - timedelta(microseconds=1),
    NOON.astimezone(timezone(timedelta(hours=14))),
    (NOON + timedelta(microseconds=1)).astimezone(timezone(timedelta(hours=-12))),
    (NOON + timedelta(milliseconds=1)).astimezone(ZoneInfo("America/New_York")),
    NOON + timedelta(seconds=1),
]


@pytest.fixture
def five(box: Outbox) -> list[OutboxEvent]:
    """An event for each moment, emitted in another order."""
    order = [3, 0, 4, 1, 2]
    for number in order:
        outbox.emit("Note", number, "note.written", deliver_after=MOMENTS[number])
    return list(OutboxEvent.select().order_by(OutboxEvent.aggregate_id))


def test_the_model_has_the_tables_columns(box: Outbox) -> None:
    columns = box.database.get_columns("outbox_event")
    assert {column.name for column in columns} == set(OutboxEvent._meta.columns)
    # SQLite says of its row id that it may be null; it never is.
    optional = {column.name for column in columns if column.null} - {"seq"}
    assert optional == {name for name, field in OutboxEvent._meta.columns.items() if field.null}


@pytest.mark.parametrize("status", STATUSES)
def test_an_event_reads_as_its_type_and_status(status: str) -> None:
    assert str(OutboxEvent(event_type="user.created", status=status)) == f"user.created ({status.capitalize()})"


def test_the_table_refuses_any_other_status(box: Outbox) -> None:
    outbox.emit("Note", 1, "note.written")
    with pytest.raises(peewee.IntegrityError):
        OutboxEvent.update(status="lost").execute()


# Moments


def test_moments_are_read_back_in_utc_to_the_microsecond(five: list[OutboxEvent]) -> None:
    assert [event.next_attempt_at for event in five] == MOMENTS
    assert {event.next_attempt_at.tzinfo for event in five} == {UTC}


def test_moments_sort_by_time_whatever_zone_they_were_given_in(five: list[OutboxEvent]) -> None:
    ordered = OutboxEvent.select().order_by(OutboxEvent.next_attempt_at)
    assert [event.aggregate_id for event in ordered] == ["0", "1", "2", "3", "4"]


def test_moments_compare_with_moments_of_any_zone(five: list[OutboxEvent]) -> None:
    for zone in (UTC, ZoneInfo("Asia/Kathmandu"), timezone(timedelta(hours=-12))):
        for number, moment in enumerate(MOMENTS):
            at = moment.astimezone(zone)
            assert numbers(OutboxEvent.next_attempt_at < at) == list(range(number))
            assert numbers(OutboxEvent.next_attempt_at == at) == [number]
            assert numbers(OutboxEvent.next_attempt_at >= at) == list(range(number, 5))


def numbers(condition: Any) -> list[int]:
    return sorted(int(event.aggregate_id) for event in OutboxEvent.select().where(condition))


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "America/St_Johns"])
def test_the_sessions_time_zone_changes_nothing(box: Outbox, url: str, zone: str) -> None:
    if is_postgres(url):
        box.database.execute_sql(f"SET TIME ZONE '{zone}'")
    before = box.dialect.now()
    emitted = outbox.emit("Note", 1, "note.written", deliver_after=NOON)
    after = box.dialect.now()
    assert before <= emitted.created_at <= after
    assert abs(before - datetime.now(UTC)) < timedelta(minutes=5)
    assert (emitted.next_attempt_at, OutboxEvent.get().next_attempt_at) == (NOON, NOON)
    assert OutboxEvent.get().created_at == emitted.created_at
    assert outbox.process_pending_events()["processed"] == (1 if before >= NOON else 0)


def test_a_naive_moment_is_refused(box: Outbox) -> None:
    with pytest.raises(ValueError, match="next_attempt_at needs a timezone-aware datetime"):
        OutboxEvent.update(next_attempt_at=datetime(2026, 1, 1)).execute()  # noqa: DTZ001


def test_a_moment_can_be_taken_away(five: list[OutboxEvent]) -> None:
    OutboxEvent.update(next_attempt_at=None).where(OutboxEvent.aggregate_id == "1").execute()
    assert numbers(OutboxEvent.next_attempt_at.is_null()) == [1]


AWARE = st.datetimes(
    min_value=datetime(1, 1, 3),  # noqa: DTZ001
    max_value=datetime(9999, 12, 29),  # noqa: DTZ001
    timezones=st.timezones() | st.just(UTC),
)


@given(AWARE, AWARE)
def test_the_texts_of_moments_sort_like_the_moments(one: datetime, other: datetime) -> None:
    one, other = one.astimezone(UTC), other.astimezone(UTC)
    assert (timestamp.to_text(one) < timestamp.to_text(other)) == (one < other)
    assert timestamp.from_database(timestamp.to_text(one)) == one
    assert len(timestamp.to_text(one)) == len(timestamp.to_text(other))


def test_the_databases_own_clock_writes_texts_that_compare(box: Outbox) -> None:
    """On SQLite, what the clock writes and what Python writes stand in the same column."""
    outbox.emit("Note", 1, "note.written")
    now = datetime.now(UTC)
    assert numbers(OutboxEvent.created_at <= now + timedelta(minutes=5)) == [1]
    assert numbers(OutboxEvent.created_at >= now - timedelta(minutes=5)) == [1]
    if box.dialect.name == "sqlite":
        (written,) = box.dialect.run("SELECT created_at FROM outbox_event").fetchone()
        assert len(written) == len(timestamp.to_text(now))


# JSON


def test_json_is_kept_as_the_text_that_was_emitted(box: Outbox) -> None:
    outbox.emit("Note", 1, "note.written", {"z": 1.0, "a": 1e22, 1: 2, "1": 3}, headers={"b": 1, "a": "é"})
    row = box.dialect.run("SELECT CAST(payload AS text), CAST(headers AS text) FROM outbox_event").fetchone()
    assert row == ('{"z":1.0,"a":1e+22,"1":2,"1":3}', '{"b":1,"a":"é"}')


def test_json_is_decoded_by_the_model(box: Outbox) -> None:
    outbox.emit("Note", 1, "note.written", {"n": [1, None]})
    event = OutboxEvent.get()
    assert (event.payload, event.headers, event.progress) == ({"n": [1, None]}, {}, None)


def test_json_can_be_written_through_the_model(box: Outbox) -> None:
    outbox.emit("Note", 1, "note.written")
    OutboxEvent.update(progress={"a": {"state": "waiting"}}).execute()
    assert OutboxEvent.get().progress == {"a": {"state": "waiting"}}
