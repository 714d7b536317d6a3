"""The inbox forgets: what is older than the retention, in small bites, and nothing sooner."""

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

import outbox
from outbox import InboxMessage
from outbox.core import Outbox
from outbox.dramatiq import actors, wakeup
from outbox.inbox.once_decorator import SKIPPED
from outbox.storage import retention
from tests.conftest import Configure
from tests.inbox.effects import inbox_rows, note_taker
from tests.support.table import change, emit, impatient, on_postgres, statements, statuses

RETENTION = timedelta(hours=72 + 168)
MINUTE = timedelta(minutes=1)


def remember(count: int, ago: timedelta = RETENTION + MINUTE, handler: str = "reader") -> None:
    """Insert rows as if so many messages had been processed that long ago."""
    for number in range(count):
        with outbox.inbox.claim(f"{handler}-{ago}-{number}", handler):
            pass
    moved = InboxMessage.update(processed_at=datetime.now(UTC) - ago)
    moved.where(InboxMessage.message_id.startswith(f"{handler}-{ago}-")).execute()


def handlers_left() -> list[str]:
    return sorted({handler for _, handler in inbox_rows()})


class TestRetention:
    def test_rows_older_than_the_retention_are_deleted(self, box: Outbox) -> None:
        remember(2, RETENTION + MINUTE, "old")
        remember(2, RETENTION - MINUTE, "young")
        assert outbox.inbox.cleanup() == {"deleted": 2, "remaining": 0}
        assert handlers_left() == ["young"]

    def test_the_default_follows_how_long_an_event_may_be_redelivered(self, configure: Configure) -> None:
        box = configure(max_age_hours=1, retention_hours=2)
        remember(1, timedelta(hours=3) + MINUTE, "old")
        remember(1, timedelta(hours=3) - MINUTE, "young")
        assert box.inbox.cleanup()["deleted"] == 1
        assert handlers_left() == ["young"]

    def test_the_retention_can_be_set(self, configure: Configure) -> None:
        box = configure(inbox_retention_hours=1_000)
        remember(1, timedelta(hours=1_000) + MINUTE, "old")
        remember(1, timedelta(hours=1_000) - MINUTE, "young")
        assert box.inbox.cleanup()["deleted"] == 1
        assert handlers_left() == ["young"]

    @pytest.mark.parametrize(("hours", "deleted"), [(0.9, 1), (1.1, 0)])
    def test_it_can_be_given(self, box: Outbox, hours: float, deleted: int) -> None:
        remember(1, timedelta(hours=1))
        assert outbox.inbox.cleanup(retention_hours=hours)["deleted"] == deleted

    def test_zero_deletes_everything(self, box: Outbox) -> None:
        remember(2, timedelta(seconds=1))
        assert box.inbox.cleanup(0) == {"deleted": 2, "remaining": 0}

    def test_a_negative_one_is_refused(self, box: Outbox) -> None:
        with pytest.raises(outbox.SettingsError, match="retention_hours must not be negative, not -1"):
            box.inbox.cleanup(-1)

    def test_a_message_whose_row_was_deleted_is_new_again(self, box: Outbox) -> None:
        take_note = note_taker()
        assert [take_note({"id": 1}), take_note({"id": 1})] == ["noted", SKIPPED]
        InboxMessage.update(processed_at=datetime.now(UTC) - RETENTION - MINUTE).execute()
        assert take_note({"id": 1}) is SKIPPED
        box.inbox.cleanup()
        assert take_note({"id": 1}) == "noted"

    def test_the_time_of_a_row_is_the_databases_now_and_a_skip_does_not_change_it(self, box: Outbox) -> None:
        note_taker()({"id": 1})
        (moment,) = [row.processed_at for row in InboxMessage.select()]
        assert abs(datetime.now(UTC) - moment) < MINUTE
        note_taker()({"id": 1})
        assert [row.processed_at for row in InboxMessage.select()] == [moment]


def clean_up(box: Outbox, **options: Any) -> dict[str, int]:
    """Delete old rows of the inbox, three at a time."""
    return retention.cleanup_inbox(box.inbox.dialect, box.settings.inbox_hours, batch_size=3, **options)


class TestBatches:
    def test_it_deletes_a_few_at_a_time_the_oldest_first(self, box: Outbox) -> None:
        remember(2, RETENTION + MINUTE, "younger")
        remember(3, RETENTION + 2 * MINUTE, "older")
        assert clean_up(box, seconds=0) == {"deleted": 3, "remaining": 2}
        assert handlers_left() == ["younger"]
        assert clean_up(box) == {"deleted": 2, "remaining": 0}

    def test_it_goes_on_until_nothing_is_left_without_a_transaction_around_it(self, box: Outbox) -> None:
        remember(10)
        with statements(box.database) as seen:
            assert clean_up(box, seconds=60) == {"deleted": 10, "remaining": 0}
        assert len([statement for statement in seen if statement.startswith("DELETE")]) == 5
        assert not [statement for statement in seen if statement.startswith("BEGIN")]

    def test_what_is_left_is_counted_up_to_a_cap(self, box: Outbox) -> None:
        remember(10)
        assert clean_up(box, seconds=0, remaining_cap=5) == {"deleted": 3, "remaining": 5}


@on_postgres
class TestOnPostgres:
    def test_rows_that_others_have_locked_are_left_for_the_next_time(self, box: Outbox, postgres_url: str) -> None:
        remember(3)
        with psycopg.connect(postgres_url) as connection, impatient(box):
            connection.execute("SELECT FROM inbox LIMIT 1 FOR UPDATE")
            assert box.inbox.cleanup() == {"deleted": 2, "remaining": 0}
        assert box.inbox.cleanup() == {"deleted": 1, "remaining": 0}

    @pytest.mark.usefixtures("new_tables")
    def test_with_many_rows_it_walks_the_index(self, box: Outbox) -> None:
        box.database.execute_sql(
            """INSERT INTO inbox (message_id, handler_name, processed_at)
               SELECT n, 'reader', now() - mod(n, 400) * interval '1 hour' FROM generate_series(1, 30000) AS n"""
        )
        box.database.execute_sql("ANALYZE inbox")
        statement = f"EXPLAIN {box.dialect.statements.inbox_delete}"
        rows = box.database.execute_sql(statement, (300 * 3600.0, retention.BATCH)).fetchall()
        plan = "\n".join(line for (line,) in rows)
        assert "idx_inbox_processed_at" in plan
        assert "Tid Scan" in plan
        assert "Seq Scan" not in plan, plan


def test_the_workers_clean_up_deletes_events_and_inbox_rows(box: Outbox) -> None:
    emit(2)
    box.process_pending_events()  # to nobody: delivered
    change(delivered_at=datetime.now(UTC) - 10 * RETENTION)
    emit(1)
    remember(2, RETENTION + MINUTE, "old")
    remember(1, RETENTION - MINUTE, "young")
    assert statuses() == {"delivered": 2, "pending": 1}
    box.is_worker = True
    actors.clean_up()
    assert statuses()["pending"] == 1
    assert handlers_left() == ["young"]


@pytest.mark.parametrize("left", ["events", "messages", "nothing"])
def test_it_enqueues_another_message_while_either_table_has_rows_left(
    box: Outbox, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    sent: list[str] = []
    some, none = {"deleted": 1, "remaining": 1}, {"deleted": 1, "remaining": 0}
    monkeypatch.setattr(wakeup, "send_clean_up", lambda: sent.append("again"))
    monkeypatch.setattr(Outbox, "cleanup_delivered_events", lambda *_, **__: some if left == "events" else none)
    monkeypatch.setattr(type(box.inbox), "cleanup", lambda *_, **__: some if left == "messages" else none)
    box.is_worker = True
    actors.clean_up()
    assert sent == ([] if left == "nothing" else ["again"])
