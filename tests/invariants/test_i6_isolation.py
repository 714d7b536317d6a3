"""A slow or dead destination, or a poison event, does not hold up or fail the others."""

import threading
from collections import Counter
from threading import Event as Gate
from typing import Any

import peewee
import psycopg
import pytest

import outbox
from outbox.core import Outbox
from outbox.delivery.claim import claim
from outbox.delivery.context import WaitTimes
from outbox.delivery.dispatch import dispatch
from outbox.storage.models import DELIVERED, FAILED, PENDING, SENDING, OutboxEvent
from tests.conftest import Configure
from tests.support.outbox_parts import replace_delivery
from tests.support.table import (
    at_work,
    becomes_true,
    claimed,
    emit,
    emit_one,
    error_of,
    expire_leases,
    on_postgres,
    passes,
    statuses,
    stored,
)

pytestmark = pytest.mark.usefixtures("usual_slices")


def drained(box: Outbox) -> Counter[str]:
    """Deliver one batch, and return how many events are in which state."""
    box.drain()
    return statuses()


class TestASlowDestination:
    def test_the_events_of_a_fast_one_are_settled_while_it_is_at_work(self, box: Outbox) -> None:
        gate = Gate()
        outbox.handler("slow", name="slow")(lambda _: passes(gate))
        outbox.handler("fast", name="fast")(lambda _: None)
        emit(3, "slow")
        emit(50, "fast")
        with at_work(box, gate):
            becomes_true(lambda: statuses()[DELIVERED] == 50)
            assert not gate.is_set()

    def test_a_fast_ones_success_is_kept_though_a_slow_one_kills_the_worker(self, configure: Configure) -> None:
        box, gate = configure(lease_seconds=0.5), Gate()
        fast: list[str] = []
        outbox.handler("*", name="slow")(lambda _: passes(gate))
        outbox.handler("*", name="fast")(lambda event: fast.append(event.aggregate_id))
        stuck, *others = emit(3)
        with at_work(box, gate):
            becomes_true(lambda: statuses() == {SENDING: 1, PENDING: 2})
            assert {stored(event).progress["fast"]["state"] for event in others} == {DELIVERED}
            assert stored(stuck).status == SENDING

    def test_many_due_events_of_it_do_not_hold_up_later_events_of_others(self, box: Outbox) -> None:
        gate = Gate()
        outbox.handler("slow", name="slow")(lambda _: passes(gate))
        outbox.handler("fast", name="fast")(lambda _: None)
        emit(500, "slow")
        emit(50, "fast")
        try:
            becomes_true(lambda: drained(box)[DELIVERED] == 50)
            assert not gate.is_set()
            # Those that wait are free, and have not paid for it.
            becomes_true(lambda: statuses() == {DELIVERED: 50, SENDING: box.settings.drains, PENDING: 498})
            assert {row.attempts for row in OutboxEvent.select() if row.status == PENDING} == {0}
        finally:
            gate.set()

    def test_its_own_limit_does_not_slow_down_others(self, box: Outbox) -> None:
        outbox.handler("*", name="limited", per_second=0.001)(lambda _: None)
        fast: list[str] = []
        outbox.handler("fast", name="fast")(lambda event: fast.append(event.aggregate_id))
        emit(300, "slow")
        emit(50, "fast")
        becomes_true(lambda: (box.drain(), len(fast) == 50)[1])


class TestADeadDestination:
    def test_its_circuit_breaker_opens_and_the_others_have_their_events(self, box: Outbox) -> None:
        tried: list[str] = []
        got: list[str] = []

        @outbox.handler("*", name="dead")
        def dead(event: outbox.Event) -> None:
            tried.append(event.aggregate_id)
            raise outbox.Unavailable("connection refused")

        outbox.handler("*", name="alive")(lambda event: got.append(event.aggregate_id))
        emit(100)
        box.drain()
        becomes_true(lambda: len(got) == 100)
        assert len(tried) == 5
        becomes_true(lambda: statuses() == {PENDING: 100})
        assert {event.progress["alive"]["state"] for event in OutboxEvent.select()} == {DELIVERED}
        assert {event.attempts for event in OutboxEvent.select()} == {0}

    def test_it_does_not_fail_or_delay_the_other(self, box: Outbox) -> None:
        called: list[str] = []
        outbox.handler("*", name="alive")(lambda event: called.append(event.aggregate_id))

        @outbox.handler("*", name="dead")
        def dead(_: outbox.Event) -> None:
            raise ConnectionRefusedError

        emit(3, max_attempts=1)
        box.process_pending_events()
        assert called == ["0", "1", "2"]
        assert statuses() == {FAILED: 3}
        assert {event.progress["alive"]["state"] for event in OutboxEvent.select()} == {DELIVERED}


class TestAPoisonEvent:
    def test_one_that_raises_costs_its_neighbours_nothing(self, box: Outbox) -> None:
        @outbox.handler("*", name="sensitive")
        def handle(event: outbox.Event) -> None:
            if event.aggregate_id == "7":
                raise ValueError("poison")

        emit(20)
        assert box.process_pending_events() == {"processed": 20, "remaining": 0}
        assert statuses() == {DELIVERED: 19, PENDING: 1}

    def test_one_that_kills_its_workers_costs_its_neighbours_no_attempt(self, box: Outbox) -> None:
        poison, *others = emit(10, max_attempts=3)
        got: list[str] = []
        outbox.handler("*", name="mortal")(lambda event: got.append(event.aggregate_id))
        claimed(box)  # all ten, by a worker that dies
        expire_leases()
        while (batch := claim(box.delivery, 100)) is not None:
            assert len(batch.events) == 1
            if batch.events[0].id == poison.id and batch.events[0].claims <= 3:
                expire_leases(poison)  # and so does every worker that delivers it
            else:
                dispatch(box.delivery, batch)
        assert stored(poison).status == FAILED
        assert [(stored(event).status, stored(event).attempts) for event in others] == [(DELIVERED, 1)] * 9
        assert sorted(got) == [str(number) for number in range(1, 10)]

    @on_postgres
    @pytest.mark.parametrize("ordering_key", [None, "all"])
    def test_one_that_ends_its_database_session_costs_its_neighbours_nothing(
        self, box: Outbox, ordering_key: str | None
    ) -> None:
        @outbox.handler("*", name="sensitive", on_failed="skip")
        def end_session(event: outbox.Event) -> None:
            with box.database.atomic():
                if event.aggregate_id == "2":
                    box.database.execute_sql("SELECT pg_terminate_backend(pg_backend_pid())")
                box.database.execute_sql("SELECT 1")

        events = emit(5, max_attempts=1, ordering_key=ordering_key)
        becomes_true(lambda: (box.drain(), statuses() == {DELIVERED: 4, FAILED: 1})[1])
        assert stored(events[2]).status == FAILED

    @on_postgres
    @pytest.mark.parametrize("ordering_key", [None, "all"])
    @pytest.mark.parametrize("closes", [False, True])
    def test_a_database_that_is_gone_after_a_call_costs_the_next_events_no_attempt(
        self, box: Outbox, monkeypatch: pytest.MonkeyPatch, ordering_key: str | None, closes: bool
    ) -> None:
        replace_delivery(box, waits=WaitTimes(connection_seconds=0.01))
        called: list[str] = []
        connect = box.database.connect

        def refuse(**options: Any) -> Any:
            if threading.current_thread().name == "outbox-to-unlucky":
                raise peewee.OperationalError("connection refused")
            return connect(**options)

        @outbox.handler("*", name="unlucky", on_failed="skip")
        def lose_the_database(event: outbox.Event) -> None:
            called.append(event.aggregate_id)
            pid = box.database.execute_sql("SELECT pg_backend_pid()").fetchone()[0]
            if closes:
                box.database.close()
            monkeypatch.setattr(box.database, "connect", refuse)
            box.database.execute_sql("SELECT pg_terminate_backend(%s)", (pid,))

        events = emit(5, ordering_key=ordering_key)
        box.drain()  # in another thread than the handler, and so on another connection
        monkeypatch.undo()
        assert called == ["0"]
        becomes_true(lambda: statuses() == {PENDING: 5})
        assert [stored(event).attempts for event in events] == [1, 0, 0, 0, 0]
        if ordering_key is None:
            assert "connection refused" in error_of(events[1])


class TestLateCommits:
    @on_postgres
    def test_a_transaction_that_commits_late_with_an_earlier_id_is_delivered(
        self, box: Outbox, postgres_url: str
    ) -> None:
        got: list[str] = []
        outbox.handler("*", name="taker")(lambda event: got.append(str(event.id)))
        early = emit_one()
        with psycopg.connect(postgres_url) as slow:
            slow.execute("CREATE TEMP TABLE copy AS SELECT * FROM outbox_event")
            slow.execute("DELETE FROM outbox_event")
            slow.commit()
            slow.execute("INSERT INTO outbox_event OVERRIDING SYSTEM VALUE SELECT * FROM copy")
            late = emit_one()  # made and committed after the early one was made
            assert early.id < late.id
            assert box.process_pending_events() == {"processed": 1, "remaining": 0}
            slow.commit()
        assert box.process_pending_events() == {"processed": 1, "remaining": 0}
        assert got == [str(late.id), str(early.id)]

    def test_an_event_with_an_old_id_is_claimed_by_its_state(self, box: Outbox) -> None:
        first, second = emit(2)
        OutboxEvent.update(next_attempt_at=None).where(OutboxEvent.id == first.id).execute()
        box.process_pending_events()
        assert stored(second).status == DELIVERED
        OutboxEvent.update(next_attempt_at=second.created_at).where(OutboxEvent.id == first.id).execute()
        box.process_pending_events()
        assert stored(first).status == DELIVERED
