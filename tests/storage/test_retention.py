"""The clean-up deletes events that ended long ago, in small batches, and delays no other transaction."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

import outbox
from outbox.core import Outbox
from outbox.errors import SettingsError
from outbox.storage import retention
from outbox.storage.ids import first_uuid7_of, uuid7
from outbox.storage.models import DELIVERED, FAILED, PENDING, SENDING, OutboxEvent
from tests.support.table import change, claimed, emit, emit_one, impatient, locking, on_postgres, statements, statuses

RETENTION = timedelta(hours=168)
MINUTE = timedelta(minutes=1)


def end(events: list[OutboxEvent], status: str, ago: timedelta) -> list[UUID]:
    """Make the events as if they had been emitted and had ended that long ago; return their new ids."""
    moment = datetime.now(UTC) - ago
    ids = [id_of(moment) for _ in events]
    for event, id in zip(events, ids, strict=True):
        change(
            event,
            id=id,
            status=status,
            next_attempt_at=None,
            delivered_at=moment if status == DELIVERED else None,
            created_at=moment,
            updated_at=moment,
        )
    return ids


def id_of(moment: datetime) -> UUID:
    """Return a UUIDv7 as it would be made at this time."""
    random = uuid7().int & ((1 << 76) - 1)
    return UUID(int=first_uuid7_of(moment).int & ~((1 << 76) - 1) | random)


def ended(count: int, status: str = DELIVERED, ago: timedelta = RETENTION + MINUTE) -> list[UUID]:
    return end(emit(count), status, ago)


def kept() -> set[UUID]:
    return {event.id for event in OutboxEvent.select(OutboxEvent.id)}


class TestWhatIsDeleted:
    @pytest.mark.parametrize("status", [DELIVERED, FAILED])
    def test_what_ended_longer_ago_than_the_retention(self, box: Outbox, status: str) -> None:
        ended(2, status, RETENTION + MINUTE)
        young = ended(2, status, RETENTION - MINUTE)
        assert box.cleanup_delivered_events() == {"deleted": 2, "remaining": 0}
        assert kept() == set(young)

    @pytest.mark.parametrize(("hours", "deleted"), [(0.9, 1), (1.1, 0)])
    def test_the_retention_can_be_given(self, box: Outbox, hours: float, deleted: int) -> None:
        ended(1, DELIVERED, timedelta(hours=1))
        assert outbox.cleanup_delivered_events(retention_hours=hours)["deleted"] == deleted

    def test_a_retention_of_nothing_deletes_all_that_ended(self, box: Outbox) -> None:
        ended(2, DELIVERED, timedelta(seconds=1))
        emit(1)
        assert box.cleanup_delivered_events(0) == {"deleted": 2, "remaining": 0}
        assert statuses() == {PENDING: 1}

    def test_a_negative_retention_is_refused(self, box: Outbox) -> None:
        with pytest.raises(SettingsError, match="retention_hours"):
            box.cleanup_delivered_events(-1)

    @pytest.mark.parametrize("status", [PENDING, SENDING])
    def test_never_what_is_unfinished_however_old(self, box: Outbox, status: str) -> None:
        event = emit_one()
        if status == SENDING:
            claimed(box)
        long_ago = datetime.now(UTC) - 10 * RETENTION
        change(event, id=id_of(long_ago), created_at=long_ago, updated_at=long_ago)
        assert box.cleanup_delivered_events(0) == {"deleted": 0, "remaining": 0}
        assert statuses() == {status: 1}

    def test_an_old_event_that_ended_only_now_is_kept(self, box: Outbox) -> None:
        change(emit_one(), id=id_of(datetime.now(UTC) - 10 * RETENTION))
        box.process_pending_events()  # no destination is registered: it is delivered at once
        assert box.cleanup_delivered_events()["deleted"] == 0
        assert statuses() == {DELIVERED: 1}

    def test_a_deleted_events_key_is_free_again(self, box: Outbox) -> None:
        end([outbox.emit("User", 1, "user.created")], DELIVERED, RETENTION + MINUTE)
        box.cleanup_delivered_events()
        assert outbox.emit("User", 1, "user.created").status == PENDING


def clean_up(box: Outbox, **options: Any) -> dict[str, int]:
    """Delete what has ended, three events at a time."""
    hours = box.settings.retention_hours
    return retention.cleanup_delivered_events(box.dialect, hours, stopping=box.stopping, batch_size=3, **options)


class TestBatches:
    def test_it_deletes_a_few_at_a_time_until_nothing_is_left(self, box: Outbox) -> None:
        ended(10)
        with statements(box.database) as seen:
            assert clean_up(box) == {"deleted": 10, "remaining": 0}
        assert len([statement for statement in seen if statement.startswith("DELETE")]) == 5

    def test_stopped_early_it_says_how_many_are_left(self, box: Outbox) -> None:
        ended(10)
        assert clean_up(box, seconds=0) == {"deleted": 3, "remaining": 7}
        assert clean_up(box) == {"deleted": 7, "remaining": 0}

    def test_what_is_left_is_counted_up_to_a_cap(self, box: Outbox) -> None:
        ended(10)
        assert clean_up(box, seconds=0, remaining_cap=5) == {"deleted": 3, "remaining": 5}

    def test_a_process_that_is_stopping_stops_it_too(self, box: Outbox) -> None:
        ended(5)
        box.stopping.set()
        assert clean_up(box) == {"deleted": 3, "remaining": 2}

    def test_no_transaction_spans_two_of_them(self, box: Outbox) -> None:
        ended(7)
        with statements(box.database) as seen:
            clean_up(box)
        assert not [statement for statement in seen if statement.startswith("BEGIN")]


class TestBesideOthers:
    def test_a_failed_event_that_is_being_retried_is_not_deleted(self, box: Outbox) -> None:
        ended(2, FAILED)
        box.retry_failed_events(limit=1)
        assert box.cleanup_delivered_events()["deleted"] == 1
        assert statuses() == {PENDING: 1}

    @on_postgres
    def test_rows_that_others_have_locked_are_left_for_the_next_time(self, box: Outbox, postgres_url: str) -> None:
        locked, *_ = ended(3, FAILED)
        with locking(postgres_url, locked), impatient(box):
            assert box.cleanup_delivered_events() == {"deleted": 2, "remaining": 0}
        assert kept() == {locked}
        assert box.cleanup_delivered_events()["deleted"] == 1

    @on_postgres
    def test_two_cleaners_share_the_work(self, box: Outbox, postgres_url: str) -> None:
        taken, *_ = ended(3)
        with psycopg.connect(postgres_url) as rival, impatient(box):
            rival.execute("DELETE FROM outbox_event WHERE id = %s", (taken,))  # not committed yet
            assert box.cleanup_delivered_events() == {"deleted": 2, "remaining": 0}
        assert kept() == set()

    @on_postgres
    def test_it_waits_for_no_emitter_and_no_worker(self, box: Outbox, postgres_url: str) -> None:
        worked_on = emit_one()
        ended(3)
        with locking(postgres_url, worked_on.id), impatient(box):
            assert box.cleanup_delivered_events()["deleted"] == 3


@on_postgres
@pytest.mark.usefixtures("new_tables")
def test_with_many_rows_it_walks_the_primary_key(box: Outbox) -> None:
    age = "(10 + mod(n, 400)) * interval '1 hour'"
    box.database.execute_sql(
        f"""
        INSERT INTO outbox_event (id, aggregate_type, aggregate_id, event_type, payload, headers, idempotency_key,
            status, attempts, max_attempts, delivered_at, created_at, updated_at)
        SELECT (lpad(to_hex((extract(epoch FROM now() - {age}) * 1000)::bigint), 12, '0')
                || '7000' || substr(md5(n::text), 1, 16))::uuid,
            'Order', n, 'order.placed', '{{}}', '{{}}', n, 'delivered', 1, 5,
            now() - {age}, now() - {age}, now() - {age}
        FROM generate_series(1, 30000) AS n"""  # noqa: S608  (the test's own words)
    )
    box.database.execute_sql("ANALYZE outbox_event")
    newest = first_uuid7_of(datetime.now(UTC) - timedelta(hours=300))
    parameters = (300 * 3600.0, UUID(int=0), newest, retention.BATCH)
    statement = f"EXPLAIN {box.dialect.statements.delete_ended}"
    plan = "\n".join(line for (line,) in box.database.execute_sql(statement, parameters).fetchall())
    assert "outbox_event_pkey" in plan
    assert "Seq Scan" not in plan, plan
