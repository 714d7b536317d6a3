"""`seq` follows the inserts, whatever the hosts' clocks say: what order per key goes by. And what order costs."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

import outbox
from outbox.core import Outbox
from outbox.destinations.outcome import Retry
from outbox.storage.array_literal import array_of_numbers, array_of_texts
from outbox.storage.connect import open_database
from outbox.storage.models import OutboxEvent
from tests.support.ordering import Receiver, crm, keyed
from tests.support.table import (
    LONG_AGO,
    another,
    becomes_true,
    change,
    emit,
    emit_one,
    let_pass,
    on_postgres,
    sessions_waiting,
    statements,
    stored,
)

__all__ = ["crm"]


def sequence() -> list[str]:
    return [event.aggregate_id for event in OutboxEvent.select().order_by(OutboxEvent.seq)]


def test_single_events_are_numbered_as_they_are_emitted(box: Outbox) -> None:
    for number in range(20):
        outbox.emit("Order", number, "order.placed")
    assert sequence() == [str(number) for number in range(20)]


def test_events_of_emit_many_are_numbered_in_the_callers_order_though_inserted_by_key(box: Outbox) -> None:
    numbers = [9, 3, 7, 1, 8, 2]
    events = outbox.emit_many([("Order", number, "order.placed") for number in numbers])
    assert sequence() == [str(number) for number in numbers]
    assert [event.seq for event in events] == sorted(event.seq for event in events)


def test_a_number_is_never_used_twice(box: Outbox) -> None:
    last = emit(3)[-1]
    OutboxEvent.delete().execute()
    assert emit_one().seq > last.seq


def test_a_batch_is_delivered_in_order(box: Outbox) -> None:
    got: list[int] = []
    outbox.handler("*", name="taker")(lambda event: got.append(event.seq))
    late = emit_one(deliver_after=timedelta(milliseconds=1))
    events = emit(50)
    OutboxEvent.update(next_attempt_at=late.created_at).execute()
    box.process_pending_events()
    assert got == [late.seq, *(event.seq for event in events)]


class TestStrict:
    @on_postgres
    def test_a_second_transaction_waits_for_the_first_before_it_draws_its_number(self, box: Outbox, url: str) -> None:
        other = Outbox(box.settings, database=open_database(url))

        def emit_in_another_transaction() -> int:
            with other.database.atomic():
                return other.emit("Order", 2, "order.placed", ordering_key="k", ordered="strict").seq

        with ThreadPoolExecutor(1) as executor:
            with box.database.atomic():
                outbox.emit("Order", 1, "order.placed", ordering_key="k", ordered="strict")
                second = executor.submit(emit_in_another_transaction)
                becomes_true(lambda: sessions_waiting(url) == 1)
                last = outbox.emit("Order", 3, "order.placed", ordering_key="k", ordered="strict")
            assert last.seq < second.result()
        other.database.close_all()  # type: ignore[attr-defined]


# The statements for order per key.
ORDER = ("earlier", "parked", "wait", "waits_since", "first_waiting", "release")


class TestStatements:
    """What a worker runs for a batch: not how long it takes, but how often it asks the database."""

    def run_of(self, box: Outbox, database: Any) -> list[str]:
        """Deliver one batch; return the statements by the first words that tell them apart."""
        with statements(database) as seen:
            box.process_pending_events()
        return [self.name_of(box, text) for text in seen]

    def name_of(self, box: Outbox, text: str) -> str:
        names = ("claim", "due", "delivered", "settled", *ORDER)
        known = {" ".join(getattr(box.dialect.statements, name).split()): name for name in names}
        return known.get(text, text.split(maxsplit=1)[0])

    def test_a_batch_without_keys_asks_nothing_about_order(self, box: Outbox, crm: Receiver, database: Any) -> None:
        emit(1)
        box.process_pending_events()
        crm.outcomes["7"] = Retry("not now")
        emit(8)
        seen = self.run_of(box, database)
        assert {"claim", "delivered"} <= set(seen)
        assert stored(OutboxEvent.get(aggregate_id="7")).attempts == 1
        assert not set(ORDER) & set(seen)

    def test_keys_cost_a_batch_two_more(self, box: Outbox, crm: Receiver, database: Any) -> None:
        """One looks for what holds the events back, and one whether any event waits."""
        emit(1)
        box.process_pending_events()
        emit(3)
        without = self.run_of(box, database)
        keyed("1", "2", "3")
        # SQLite looks for one key at a time.
        assert sorted(self.run_of(box, database)) == sorted([*without, "earlier", "waits_since"])

    @on_postgres
    def test_however_many_keys_there_are(self, box: Outbox, crm: Receiver, database: Any) -> None:
        emit(1)
        box.process_pending_events()
        for number in range(50):
            keyed(f"{number}-1", f"{number}-2", key=f"k{number}")
        seen = self.run_of(box, database)
        assert [seen.count(name) for name in ORDER] == [1, 0, 0, 1, 0, 0]

    @on_postgres
    def test_events_that_have_waited_for_long_behind_others_cost_nothing_more(
        self, box: Outbox, crm: Receiver, database: Any
    ) -> None:
        crm.outcomes["first"] = Retry("not now")
        keyed("first", "second", key="other")
        box.process_pending_events()
        database.execute_sql("UPDATE outbox_waiting SET since = '2020-01-01'")
        keyed("1", key="k")
        seen = self.run_of(box, database)
        assert [seen.count(name) for name in ORDER] == [1, 0, 0, 1, 0, 0]

    def test_events_that_have_waited_for_long_are_released_by_the_one_before_them(
        self, box: Outbox, crm: Receiver, database: Any
    ) -> None:
        crm.outcomes["1"] = Retry("not now")
        keyed("1", "2", "3")
        box.process_pending_events()
        database.execute_sql("UPDATE outbox_waiting SET since = '2020-01-01'")
        crm.outcomes.clear()
        let_pass(minutes=2)
        box.process_pending_events(1)
        assert stored(OutboxEvent.get(aggregate_id="2")).order_state == "holds"

    def test_events_that_have_waited_for_long_are_released_by_one_that_ends_at_the_claim(
        self, box: Outbox, crm: Receiver, database: Any
    ) -> None:
        """It has killed its workers, so it fails unsent, and nothing was looked up for its key."""
        crm.on_failed = "skip"
        crm.outcomes["1"] = Retry("not now")
        first, second = keyed("1", "2")
        box.process_pending_events()
        database.execute_sql("UPDATE outbox_waiting SET since = '2020-01-01'")
        change(first, attempts=9, lease_id=uuid4(), lease_until=LONG_AGO, next_attempt_at=LONG_AGO)
        box.process_pending_events(1)
        assert (stored(first).status, stored(second).order_state) == ("failed", "holds")

    @on_postgres
    def test_while_events_wait_one_more_looks_whether_it_is_behind_these(
        self, box: Outbox, crm: Receiver, database: Any
    ) -> None:
        crm.outcomes["first"] = Retry("not now")
        keyed("first", "second", key="other")
        box.process_pending_events()
        for number in range(50):
            keyed(f"{number}", key=f"k{number}")
        seen = self.run_of(box, database)
        assert [seen.count(name) for name in ORDER] == [1, 0, 0, 1, 1, 0]


# Notes each update of an event's row by what it does.
WATCH = """
CREATE TABLE written (number text, what text);
CREATE FUNCTION note_update() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO written VALUES (NEW.aggregate_id, CASE
        WHEN NEW.lease_id IS NOT NULL AND NEW.lease_id IS DISTINCT FROM OLD.lease_id THEN 'claimed'
        WHEN NEW.order_state = 'waits' THEN 'parked'
        WHEN OLD.order_state = 'waits' THEN 'released'
        ELSE NEW.status END);
    RETURN NULL;
END $$;
CREATE TRIGGER note_update AFTER UPDATE ON outbox_event FOR EACH ROW EXECUTE FUNCTION note_update();
"""


@on_postgres
@pytest.mark.usefixtures("new_tables")
def test_a_blocked_event_is_written_once_when_parked_and_once_when_released_however_often_the_head_is_tried(
    box: Outbox, crm: Receiver, database: Any
) -> None:
    database.execute_sql(WATCH)
    workers = [box, another(box)]
    crm.outcomes["head"] = Retry("not now", timedelta(0))
    keyed("head", max_attempts=1_000)
    emit(300, ordering_key="k")
    for number in range(60):
        workers[number % 2].process_pending_events(20)
    assert crm.calls["head"] > 40
    written = "SELECT what, count(*) FROM written WHERE number <> 'head' GROUP BY 1"
    assert dict(database.execute_sql(written).fetchall()) == {"claimed": 300, "parked": 300}
    crm.outcomes.clear()
    while any(each.process_pending_events(20)["processed"] for each in workers):
        pass
    assert crm.ids() == ["head", *map(str, range(300))]
    found = dict(database.execute_sql(written).fetchall())
    assert found == {"claimed": 600, "parked": 300, "released": 300, "delivered": 300}


@on_postgres
@pytest.mark.usefixtures("new_tables")
def test_where_events_are_refused_now_and_then_few_are_released_in_vain(
    box: Outbox, crm: Receiver, database: Any
) -> None:
    """A batch of them stops at the first that is refused: a whole batch each time would park most of them again."""
    database.execute_sql(WATCH)
    crm.outcomes = {str(number): Retry("not now", timedelta(0)) for number in range(0, 300, 10)}
    emit(300, ordering_key="k")
    while len(crm.got) < 300:
        box.process_pending_events()
        for number in [number for number in crm.outcomes if crm.calls[number]]:
            del crm.outcomes[number]
    assert crm.ids() == [str(number) for number in range(300)]
    found = dict(database.execute_sql("SELECT what, count(*) FROM written GROUP BY 1").fetchall())
    assert found["released"] == found["parked"] < 2 * 300


@on_postgres
@pytest.mark.usefixtures("new_tables")
def test_events_that_wait_behind_one_key_are_not_read_for_other_keys(box: Outbox, database: Any) -> None:
    """PostgreSQL knows that most rows have one key, and must not scan the table for the others because of that."""
    database.execute_sql(
        "INSERT INTO outbox_waiting SELECT 'hot', 'crm', seq, md5(random()::text)::uuid, now() "
        "FROM generate_series(1, 20000) AS seq"
    )
    database.execute_sql("ANALYZE outbox_waiting")
    keys, names = array_of_texts([f"k{number}" for number in range(100)]), array_of_texts(["crm"] * 100)
    numbers, statements = array_of_numbers(range(100)), box.dialect.statements
    newest = (300 * 3600.0, UUID(int=0), UUID(int=(1 << 128) - 1), 500)
    for statement, parameters, scans in (
        (statements.earlier, (keys, numbers, -1, UUID(int=0), 10, "{crm}"), 1),  # to find out whether any event waits
        (statements.first_waiting, (keys, names), 0),
        (statements.release, (keys, names, array_of_numbers([1] * 100), 1), 0),
        (statements.delete_ended, newest, 0),
    ):
        rows = database.execute_sql(f"EXPLAIN {statement}", parameters).fetchall()
        plan = "\n".join(line for (line,) in rows)
        assert "outbox_waiting_pkey" in plan, plan
        assert plan.count("Seq Scan on outbox_waiting") <= scans, plan


@on_postgres
@pytest.mark.usefixtures("new_tables")
def test_asking_whether_events_were_parked_lately_never_scans_those_that_wait_for_long(
    box: Outbox, database: Any
) -> None:
    """Not either when the statement is prepared, so that PostgreSQL plans it without the parameter."""
    database.execute_sql(
        "INSERT INTO outbox_waiting SELECT 'hot', 'crm', seq, md5(random()::text)::uuid, '2020-01-01' "
        "FROM generate_series(1, 20000) AS seq"
    )
    database.execute_sql("ANALYZE outbox_waiting")
    with database.atomic():
        database.execute_sql("SET LOCAL plan_cache_mode = force_generic_plan")
        database.execute_sql(f"PREPARE lately AS {box.dialect.statements.waits_since.replace('%s', '$1')}")
        rows = database.execute_sql("EXPLAIN EXECUTE lately('2026-01-01')").fetchall()
        database.execute_sql("DEALLOCATE lately")
    plan = "\n".join(line for (line,) in rows)
    assert "Seq Scan" not in plan, plan
