"""emit_many needs no right to the sequence: with it or without, it numbers and stores the same."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import peewee
import psycopg
import pytest

import outbox
from outbox import OutboxEvent
from outbox.core import Outbox
from tests.support.crowd import PATIENCE_SECONDS, at_once
from tests.support.roles import FOR_EMITTING, GRANTS, As, grant, role
from tests.support.servers import wait_until
from tests.support.table import statements

Owner = psycopg.Connection[Any]


def orders(*numbers: int) -> list[tuple[str, int, str]]:
    return [("Order", number, "order.placed") for number in numbers]


def stored(owner: Owner) -> list[tuple[int, str, str]]:
    return owner.execute("SELECT seq, aggregate_id, idempotency_key FROM outbox_event ORDER BY seq").fetchall()


def reserves_numbers(box: Outbox) -> bool:
    """Emit many events, and return whether rows were inserted only to draw their numbers."""
    with statements(box.database) as seen:
        box.emit_many([("Order", 1, "order.placed", {}, outbox.UNIQUE)] * 2)
    return any("RETURNING id, seq" in statement for statement in seen)


def test_without_the_sequence_emit_many_numbers_in_the_callers_order(owner: Owner, box_as: As) -> None:
    grant(owner, FOR_EMITTING)
    numbers = [*range(1200, 0, -1), *range(1201, 2402)]
    events = box_as("app").emit_many(orders(*numbers))
    assert [event.seq for event in events] == sorted({event.seq for event in events})
    assert stored(owner) == [
        (event.seq, str(number), f"Order:{number}") for event, number in zip(events, numbers, strict=True)
    ]


def test_without_the_sequence_events_of_a_key_are_numbered_in_the_callers_order(owner: Owner, box_as: As) -> None:
    grant(owner, FOR_EMITTING)
    numbers = list(range(1500, 0, -1))
    order = {"aggregate_type": "Order", "event_type": "order.placed"}
    events = box_as("app").emit_many(
        [{**order, "aggregate_id": number, "ordering_key": f"Order:{number % 3}"} for number in numbers]
    )
    assert [event.aggregate_id for event in events] == [str(number) for number in numbers]
    assert [event.seq for event in events] == sorted({event.seq for event in events})
    assert [id for _, id, _ in stored(owner)] == [str(number) for number in numbers]


def test_without_the_sequence_a_duplicate_takes_back_only_its_call(owner: Owner, box_as: As) -> None:
    grant(owner, FOR_EMITTING)
    box = box_as("app")
    first = box.emit("Order", 2, "order.placed")
    with box.database.atomic():
        box.emit_many(orders(5, 4))
        with pytest.raises(outbox.DuplicateEvent, match=str(first.id)):
            box.emit_many(orders(3, 2, 1))
        assert [event.aggregate_id for event in box.emit_many(orders(3, 2, 3), on_duplicate="ignore")] == [
            "3",
            "2",
            "3",
        ]
    assert [id for _, id, _ in stored(owner)] == ["2", "5", "4", "3"]


@pytest.mark.parametrize("right", ["USAGE", "UPDATE"])
def test_numbers_are_drawn_without_rows_by_a_role_that_may(owner: Owner, box_as: As, right: str) -> None:
    grant(owner, f"{FOR_EMITTING} GRANT {right} ON SEQUENCE outbox_event_seq_seq TO app;")
    assert not reserves_numbers(box_as("app"))


def test_the_right_is_that_of_the_role_at_the_call(owner: Owner, box_as: As) -> None:
    """An application may take another role for each transaction."""
    grant(owner, f"{GRANTS} GRANT SELECT, INSERT ON outbox_event TO viewer;")
    box = box_as("app")
    assert not reserves_numbers(box)
    with box.database.atomic():
        box.database.execute_sql(f"SET LOCAL ROLE {role('viewer')}")
        assert reserves_numbers(box)
    assert not reserves_numbers(box)
    assert len(stored(owner)) == 6


@pytest.mark.parametrize("others", ["app", "worker"])
def test_callers_with_the_same_keys_in_opposite_order_dont_deadlock(owner: Owner, box_as: As, others: str) -> None:
    """Of the two roles, only the worker has a right to the sequence."""
    grant(owner, f"{FOR_EMITTING} GRANT SELECT, INSERT ON outbox_event TO worker;")
    grant(owner, "GRANT USAGE ON SEQUENCE outbox_event_seq_seq TO worker;")
    boxes = box_as("app"), box_as(others)
    numbers = list(range(100, 200))

    def in_order(box: Outbox, numbers: list[int]) -> Callable[[], list[OutboxEvent]]:
        return lambda: box.emit_many(orders(*numbers), on_duplicate="ignore")

    rival = box_as("worker")
    with ThreadPoolExecutor(2) as threads:
        with rival.database.atomic() as transaction:
            rival.emit("Order", 150, "order.placed")
            calls = in_order(boxes[0], numbers), in_order(boxes[1], numbers[::-1])
            running = [threads.submit(at_once, box.database, [call]) for box, call in zip(boxes, calls, strict=True)]
            # Each has inserted what comes before the rival's key, and waits.
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            assert wait_until(lambda: owner.execute(waiting).fetchone() == (2,))
            transaction.rollback()
        results = [result for each in running for result in each.result(PATIENCE_SECONDS)]
    assert [len(result) for result in results if isinstance(result, list)] == [100] * 2


def test_a_policy_that_allows_the_events_allows_reserving_their_numbers(owner: Owner, box_as: As) -> None:
    grant(owner, FOR_EMITTING)
    owner.execute("ALTER TABLE outbox_event ENABLE ROW LEVEL SECURITY")
    owner.execute("CREATE POLICY own ON outbox_event USING (tenant_id = 'mine' AND payload::text <> '{}')")
    box = box_as("app")
    mine = {"aggregate_type": "Order", "event_type": "order.placed", "tenant_id": "mine", "payload": {"n": 1}}
    assert len(box.emit_many([{**mine, "aggregate_id": number} for number in (2, 1)])) == 2
    with pytest.raises(peewee.ProgrammingError, match="row-level security"):
        box.emit_many([{**mine, "aggregate_id": 3, "tenant_id": "theirs"}])


def test_without_the_sequence_a_trigger_that_skips_rows_is_an_error_and_the_transaction_goes_on(
    owner: Owner, box_as: As
) -> None:
    grant(owner, FOR_EMITTING)
    owner.execute(
        """CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
        CREATE TRIGGER skip BEFORE INSERT ON outbox_event FOR EACH ROW WHEN (NEW.aggregate_id = '2')
        EXECUTE FUNCTION skip()"""
    )
    box = box_as("app")
    with box.database.atomic():
        with pytest.raises(outbox.EventNotStored, match=r"Order:2.*a BEFORE INSERT trigger"):
            box.emit_many(orders(1, 2, 3))
        box.emit_many(orders(4, 3))
    assert [id for _, id, _ in stored(owner)] == ["4", "3"]
