"""claim: what is due and free, by the database's clock, under a new lease."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

import outbox
from outbox.core import Outbox
from outbox.delivery.claim import claim
from outbox.delivery.deliver import count_due
from outbox.events.event import Event
from outbox.storage.models import DELIVERED, FAILED, PENDING, SENDING
from outbox.storage.timestamp import EARLIEST
from tests.conftest import Configure
from tests.support.table import (
    becomes_true,
    change,
    claimed,
    emit,
    emit_one,
    expire_leases,
    ids,
    impatient,
    let_pass,
    locking,
    on_postgres,
    statements,
    statuses,
    stored,
)

BEGINNING = "-infinity"


# Written by hand or by another program: Python can't read them, or not in every time zone.
UNREADABLE = {
    "postgres": ["-infinity", "4713-01-01 00:00:00+00 BC", "0001-01-01 00:00:00+00"],
    "sqlite": ["", "0000-00-00", "0001-01-01 00:00:00.000000+14:00", "1"],
}
FAR_AWAY = {"postgres": ["infinity", "20000-01-01 00:00:00+00"], "sqlite": ["x", "20000-01-01"]}


class TestATimestampThatCanNotBeRead:
    """It is one row's own trouble: the others of its batch, and all batches after it, go on."""

    @pytest.fixture
    def western(self, box: Outbox) -> Iterator[None]:
        """West of Greenwich the first day of the year 1 is one of the year before."""
        with box.database.connection_context():
            if box.dialect.name == "postgres":
                box.database.execute_sql("SET TimeZone = 'Etc/GMT+12'")
            yield

    @pytest.mark.usefixtures("western")
    @pytest.mark.parametrize("column", ["next_attempt_at", "created_at"])
    def test_does_not_keep_its_event_or_the_others_from_being_delivered(self, box: Outbox, column: str) -> None:
        moments = UNREADABLE[box.dialect.name] + (FAR_AWAY[box.dialect.name] if column == "created_at" else [])
        got: list[UUID] = []

        @outbox.handler("*")
        def handle(event: Event) -> None:
            assert event.created_at.year >= EARLIEST.year
            got.append(event.id)

        events = emit(len(moments) + 1)
        for event, moment in zip(events, moments, strict=False):
            statement = f"UPDATE outbox_event SET {column} = ? WHERE id = ?"  # noqa: S608  (a name of our own)
            mark = "%s" if box.dialect.name == "postgres" else "?"
            box.database.execute_sql(statement.replace("?", mark), (moment, box.dialect.id(event.id)))
        while box.process_pending_events(batch_size=2)["processed"]:
            pass
        assert sorted(got) == sorted(ids(events))
        assert statuses() == {DELIVERED: len(events)}


class TestWhatIsDue:
    def test_nothing_due_is_no_batch(self, box: Outbox) -> None:
        assert claim(box.delivery, 10) is None

    @pytest.mark.parametrize(("seconds", "due"), [(59, False), (61, True)])
    def test_an_event_is_due_from_its_time_on(self, box: Outbox, seconds: int, due: bool) -> None:
        emit(1, deliver_after=timedelta(minutes=1))
        let_pass(seconds=seconds)
        assert count_due(box.delivery) == int(due)
        assert (claim(box.delivery, 10) is not None) == due

    @pytest.mark.parametrize("status", [DELIVERED, FAILED])
    def test_an_event_that_has_ended_is_never_claimed(self, box: Outbox, status: str) -> None:
        change(emit_one(), status=status, next_attempt_at=None)
        assert claim(box.delivery, 10) is None

    def test_the_oldest_due_come_first_and_equals_in_the_order_of_emission(self, box: Outbox) -> None:
        early, late = emit(3), emit(3)
        let_pass(minutes=1)
        change(*early, next_attempt_at=stored(late[0]).next_attempt_at - timedelta(seconds=30))
        change(*late, next_attempt_at=stored(late[0]).next_attempt_at)
        assert ids(claimed(box, 4).events)[:3] == ids(early)
        assert len(claimed(box, 4).events) == 2

    def test_a_claim_takes_no_more_than_asked_and_says_whether_there_may_be_more(self, box: Outbox) -> None:
        emit(5)
        first, second = claimed(box, 3), claimed(box, 3)
        assert (len(first.events), first.full) == (3, True)
        assert (len(second.events), second.full) == (2, False)


class TestTheLease:
    def test_a_claim_counts_an_attempt_and_leases_the_event(self, configure: Configure) -> None:
        box = configure(lease_seconds=45)
        event = emit_one()
        batch = claimed(box)
        row = stored(event)
        assert (row.status, row.attempts, row.lease_id) == (SENDING, 1, batch.lease_id)
        assert row.lease_until - row.updated_at == timedelta(seconds=45)
        assert row.next_attempt_at is not None

    @pytest.mark.parametrize(("seconds", "free"), [(180, False), (201, True)])
    def test_an_event_is_free_again_when_its_lease_has_run_out(
        self, configure: Configure, seconds: int, free: bool
    ) -> None:
        box = configure(lease_seconds=200)
        emit(1)
        claimed(box)
        let_pass(seconds=seconds)
        assert count_due(box.delivery) == int(free)
        assert (claim(box.delivery, 10) is not None) == free

    def test_every_claim_has_a_lease_of_its_own(self, box: Outbox) -> None:
        event = emit_one()
        first = claimed(box)
        expire_leases()
        second = claimed(box)
        assert first.lease_id != second.lease_id == stored(event).lease_id

    def test_the_batch_ends_by_this_hosts_clock_no_later_than_the_lease(self, box: Outbox) -> None:
        emit(1)
        batch = claimed(box)
        assert batch.valid_until <= batch.started_at + box.settings.lease_seconds


class TestEventsFromExpiredLeases:
    def test_a_row_taken_over_from_an_expired_lease_is_claimed_alone(self, box: Outbox) -> None:
        emit(3)
        claimed(box)
        expire_leases()
        emit(3)
        for _ in range(3):
            batch = claimed(box)
            assert [event.from_expired_lease for event in batch.events] == [True]
            assert batch.full  # there may be more where it came from
        assert len(claimed(box).events) == 3

    def test_it_costs_the_other_events_no_attempt(self, box: Outbox) -> None:
        expired = emit_one()
        claimed(box)
        expire_leases()
        others = emit(2)
        claimed(box)
        assert stored(expired).attempts == 2
        assert {(stored(event).attempts, stored(event).status) for event in others} == {(0, PENDING)}

    def test_events_claimed_for_the_first_time_are_claimed_together(self, box: Outbox) -> None:
        emit(3)
        assert [event.from_expired_lease for event in claimed(box).events] == [False] * 3


@on_postgres
class TestOnPostgres:
    def test_rows_that_another_transaction_has_locked_are_skipped_not_waited_for(
        self, box: Outbox, postgres_url: str
    ) -> None:
        locked, *free = emit(3)
        with locking(postgres_url, locked.id), impatient(box):
            assert ids(claimed(box).events) == ids(free)

    def test_two_claims_at_once_share_the_table(self, box: Outbox, postgres_url: str) -> None:
        events = emit(6)
        statement = box.dialect.statements.claim
        with psycopg.connect(postgres_url) as rival, impatient(box):
            taken = rival.execute(statement, (BEGINNING, True, 3, events[0].id, 30.0)).fetchall()  # not committed yet
            batch = claimed(box, 6)
        assert {UUID(row[0]) for row in taken} | set(ids(batch.events)) == set(ids(events))
        assert len(taken) == len(batch.events) == 3

    @pytest.mark.usefixtures("new_tables")
    def test_a_claim_touches_no_index(self, box: Outbox) -> None:
        emit(500)
        claimed(box, 500)
        becomes_true(lambda: updates(box)[0] == 500)
        # A row grows by its lease: of the tiniest rows the last one or two of a page don't fit beside the others.
        assert updates(box)[1] > 400

    @pytest.mark.usefixtures("new_tables")
    def test_among_hundreds_of_thousands_of_rows_no_step_reads_them_all(self, box: Outbox) -> None:
        fill(box, "delivered", 400_000, "NULL")
        fill(box, "pending", 20_000, "now() + interval '1 hour'")
        emit(51)
        box.database.execute_sql("ANALYZE outbox_event")
        texts, lease = box.dialect.statements, uuid4()
        looks: dict[str, tuple[Any, ...]] = {
            texts.claim: (BEGINNING, True, 100, lease, 30.0),
            texts.count_due: (1_000,),
        }
        for statement, parameters in looks.items():
            plan = explain(box, statement, parameters)
            assert "idx_outbox_pending_next" in plan
            assert "Seq Scan on outbox_event" not in plan, plan
        for batch in (1, 100, 1_000, 5_000):
            several = box.dialect.ids([uuid4() for _ in range(batch)])
            ends: dict[str, tuple[Any, ...]] = {
                texts.delivered: (1, None, several, lease),
                texts.released: (several, lease),
                texts.renewed: (30.0, several, box.dialect.ids([lease])),
            }
            for statement, parameters in ends.items():
                plan = explain(box, statement, parameters)
                assert "Seq Scan" not in plan, plan
        assert len(claimed(box).events) == 51

    def test_an_all_delivered_batch_is_one_claim_and_one_settle(self, box: Outbox) -> None:
        outbox.handler("order.*", name="taker")(lambda _: None)
        emit(1)
        box.process_pending_events()  # the first one looks up who wants the type
        emit(50)
        with statements(box.database) as seen:
            box.process_pending_events(100)
        written = [statement for statement in seen if "UPDATE" in statement]
        assert [statement.split()[0] for statement in written] == ["WITH", "UPDATE"]
        assert "status = 'delivered'" in written[1]
        assert len(seen) == 3  # and the count of what is left


def updates(box: Outbox) -> tuple[int, int]:
    """How many rows were updated, and how many of them without touching an index."""
    box.database.close_all()  # type: ignore[attr-defined]  # a session reports its numbers at its end, if not before
    query = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'outbox_event'"
    row: tuple[int, int] = box.database.execute_sql(query).fetchone()
    return row


def fill(box: Outbox, status: str, count: int, next_attempt_at: str) -> None:
    """Many rows at once; what they say matters to no one."""
    statement = f"""
        INSERT INTO outbox_event (id, aggregate_type, aggregate_id, event_type, payload, headers, idempotency_key,
            status, attempts, max_attempts, next_attempt_at, delivered_at, created_at, updated_at)
        SELECT md5(random()::text)::uuid, 'Order', n, 'order.placed', '{{}}', '{{}}', md5(random()::text)::uuid,
            '{status}', 1, 5, {next_attempt_at}, now(), now(), now()
        FROM generate_series(1, {count}) AS n"""  # noqa: S608  (the test's own words)
    box.database.execute_sql(statement)


def explain(box: Outbox, statement: str, parameters: tuple[Any, ...]) -> str:
    rows = box.database.execute_sql(f"EXPLAIN {statement}", parameters).fetchall()
    return "\n".join(line for (line,) in rows)
