"""The lease keeper: a long handler keeps its lease, a dead worker loses it, and events that have not begun go back."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from threading import Event as Gate
from typing import Any

import peewee
import pytest

import outbox
from outbox import current_outbox
from outbox.core import Outbox
from outbox.delivery.batch import Delivery
from outbox.delivery.deliver import count_due, end_slice
from outbox.delivery.lease import LeaseKeeper
from outbox.storage.models import DELIVERED, PENDING, SENDING, OutboxEvent
from tests.conftest import Configure
from tests.support.notifications import replace_wake
from tests.support.outbox_parts import replace_delivery
from tests.support.table import (
    LONG_AGO,
    another,
    at_work,
    becomes_true,
    claimed,
    emit,
    emit_one,
    end_connections,
    expire_leases,
    locking,
    on_postgres,
    passes,
    sees_leases,
    sessions_waiting,
    statements,
    statuses,
    stored,
)

SHORT = {"lease_seconds": 0.6}

pytestmark = pytest.mark.usefixtures("usual_slices")


def busy_handler(gate: Gate) -> list[str]:
    """Register a handler that is busy until its gate opens; return the list of its events."""
    called: list[str] = []

    @outbox.handler("order.*", name="busy")
    def handle(event: outbox.Event) -> None:
        called.append(event.aggregate_id)
        passes(gate)

    return called


class TestRenewal:
    def test_a_long_handler_keeps_its_lease_and_succeeds_once(self, configure: Configure) -> None:
        box, gate = configure(**SHORT), Gate()
        called = busy_handler(gate)
        event = emit_one()
        with at_work(box, gate) as work:
            becomes_true(lambda: stored(event).status == SENDING)
            becomes_true(sees_leases(event, 4))  # longer, by now, than the lease it was claimed with
            assert another(box).process_pending_events() == {"processed": 0, "remaining": 0}
        assert work.result() == {"processed": 1, "remaining": 0}
        assert called == ["0"]
        assert (stored(event).status, stored(event).attempts, box.counters["fenced"]) == (DELIVERED, 1, 0)

    def test_it_ends_after_the_longest_allowed_run(self, configure: Configure) -> None:
        box, gate = configure(**SHORT, max_run_seconds=1), Gate()
        busy_handler(gate)
        event = emit_one()
        with at_work(box, gate):
            becomes_true(lambda: stored(event).status == SENDING)
            becomes_true(lambda: count_due(box.delivery) == 1)
            assert claimed(another(box)).events[0].from_expired_lease
        assert (stored(event).status, box.counters["fenced"]) == (SENDING, 1)

    def test_one_statement_renews_all_of_a_processs_batches(self, box: Outbox) -> None:
        events = emit(4)
        batches = [claimed(box, 2), claimed(box, 2)]
        expire_leases()
        with statements(box.database) as seen:
            box.delivery.leases.renew(batches)
        assert len(seen) == 1
        assert min(stored(event).lease_until for event in events) > LONG_AGO
        assert [stored(event).attempts for event in events] == [1] * 4

    def test_a_lease_that_expired_and_that_no_worker_took_over_is_renewed(self, box: Outbox) -> None:
        emit(1)
        batch = claimed(box)
        expire_leases()
        box.delivery.leases.renew([batch])
        assert count_due(box.delivery) == 0
        assert batch.begin(Delivery(batch.events[0], {}), "busy", time.monotonic())

    def test_a_lost_lease_is_not_renewed_and_its_event_does_not_begin(self, box: Outbox) -> None:
        event = emit_one()
        late = claimed(box)
        expire_leases()
        claimed(another(box))
        before = stored(event).lease_until
        box.delivery.leases.renew([late])
        assert stored(event).lease_until == before
        assert not late.begin(Delivery(late.events[0], {}), "busy", time.monotonic())

    def test_settled_events_are_no_longer_renewed(self, box: Outbox) -> None:
        emit(1)
        batch = claimed(box)
        batch.finish(Delivery(batch.events[0], {}))
        batch.take_finished()
        batch.written()
        with statements(box.database) as seen:
            box.delivery.leases.renew([batch])
        assert seen == []

    @on_postgres
    def test_it_survives_a_lost_connection(self, configure: Configure, postgres_url: str) -> None:
        box, gate = configure(lease_seconds=3), Gate()
        called = busy_handler(gate)
        event = emit_one()
        with at_work(box, gate) as work:
            becomes_true(lambda: called == ["0"])  # the claim has returned, and the event is not given back any more
            box.database.close()
            end_connections(postgres_url)
            becomes_true(renewed_again(event))
        assert work.result()["processed"] == 1
        assert stored(event).status == DELIVERED


@on_postgres
class TestARowThatAnotherTransactionHasLocked:
    def test_does_not_keep_the_leases_of_others_from_being_renewed(
        self, configure: Configure, postgres_url: str
    ) -> None:
        box, begun, locked, gate = configure(**SHORT), Gate(), Gate(), Gate()
        called: list[str] = []

        @outbox.handler("order.*", name="busy")
        def handle(event: outbox.Event) -> None:
            called.append(event.aggregate_id)
            begun.set()
            passes(locked if event.aggregate_id == "0" else gate)

        finished, neighbour = emit(2)
        with at_work(box, locked, gate):
            passes(begun)
            with locking(postgres_url, finished.id):
                locked.set()
                other = outbox.emit("Order", 2, "order.placed")
                with at_work(box, gate):
                    becomes_true(lambda: sessions_waiting(postgres_url) == 1)  # the one that settles the first
                    becomes_true(sees_leases(neighbour, 4))
                    becomes_true(sees_leases(other, 4))
                    assert another(box).process_pending_events()["processed"] == 0
                    gate.set()
        assert sorted(called) == ["0", "1", "2"]
        assert (statuses(), box.counters["fenced"]) == ({DELIVERED: 3}, 0)

    def test_does_not_end_the_leases_of_what_is_written_together_with_it(
        self, configure: Configure, postgres_url: str
    ) -> None:
        box, begun, locked = configure(**SHORT), Gate(), Gate()

        @outbox.handler("order.*", name="quick")
        def handle(event: outbox.Event) -> None:
            if event.aggregate_id == "1":
                begun.set()
                passes(locked)

        first, second = emit(2)
        with at_work(box, locked):
            passes(begun)
            with locking(postgres_url, first.id):
                locked.set()
                becomes_true(lambda: sessions_waiting(postgres_url) == 1)
                becomes_true(sees_leases(second, 4))
                assert another(box).process_pending_events()["processed"] == 0
        assert (statuses(), box.counters["fenced"]) == ({DELIVERED: 2}, 0)


@on_postgres
def test_leases_are_renewed_although_the_pool_has_no_connection_left(configure: Configure, database: Any) -> None:
    box, gate = configure(**SHORT), Gate()
    busy_handler(gate)
    event = emit_one()
    with at_work(box, gate):
        becomes_true(lambda: stored(event).status == SENDING)
        database._max_connections = len(database._in_use)
        try:
            becomes_true(sees_leases(event, 4))
        finally:
            database._max_connections = 64


class TestTheTimeSliceOfABatch:
    def test_what_has_not_begun_is_given_back_while_a_handler_is_busy(self, configure: Configure) -> None:
        box, gate = configure(), Gate()
        called = busy_handler(gate)
        busy, *others = emit(5)
        with at_work(box, gate):
            becomes_true(lambda: statuses() == {SENDING: 1, PENDING: 4})
            assert {(stored(event).attempts, stored(event).lease_id) for event in others} == {(0, None)}
            gate.set()
        assert called == ["0"]
        assert (stored(busy).status, box.counters["released"]) == (DELIVERED, 4)

    def test_another_worker_delivers_it_meanwhile(self, box: Outbox) -> None:
        gate = Gate()
        outbox.handler("slow", name="slow")(lambda event: passes(gate) if event.aggregate_id == "0" else None)
        emit(5, "slow")
        with at_work(box, gate):
            becomes_true(lambda: statuses() == {SENDING: 1, PENDING: 4})
            assert another(box).process_pending_events()["processed"] == 4
            assert statuses() == {SENDING: 1, DELIVERED: 4}

    def test_a_busy_destination_does_not_keep_events_that_another_has_finished(self, box: Outbox) -> None:
        gate = Gate()
        called = busy_handler(gate)
        outbox.handler("*", name="quick")(lambda _: called.append("quick"))
        busy, *others = emit(3)
        with at_work(box, gate):
            becomes_true(lambda: statuses() == {SENDING: 1, PENDING: 2})
            assert [stored(event).progress["quick"]["state"] for event in others] == [DELIVERED] * 2
            assert {stored(event).attempts for event in others} == {0}
            gate.set()
            becomes_true(lambda: stored(busy).status == DELIVERED)
            another(box).process_pending_events()
        assert statuses() == {DELIVERED: 3}
        assert sorted(called) == ["0", "1", "2", "quick", "quick", "quick"]

    def test_a_worker_is_notified_of_events_that_were_given_back(self, box: Outbox) -> None:
        notified = Gate()
        replace_wake(box, notified.set)
        emit(1)
        end_slice(box.delivery, claimed(box))
        passes(notified)


class TestTheThread:
    def test_one_thread_renews_the_leases_of_all_batches(self, box: Outbox) -> None:
        replace_delivery(box, leases=LeaseKeeper(box.dialect, box.settings, renewals=300))
        gate = Gate()
        busy_handler(gate)
        events = emit(3)
        with ExitStack() as stack:
            for _ in events:
                stack.enter_context(at_work(box, gate, batch_size=1))
            becomes_true(lambda: statuses() == {SENDING: 3})
            for event in events:
                becomes_true(sees_leases(event, 3))
        assert statuses() == {DELIVERED: 3}

    def test_sqlite_in_memory_needs_none(self) -> None:
        database = peewee.SqliteDatabase(":memory:")
        box = outbox.configure(database=database, dispatch="off")
        try:
            box.create_tables()
            outbox.handler("*", name="taker")(lambda _: None)
            emit(1)
            assert box.process_pending_events() == {"processed": 1, "remaining": 0}
            assert not box.delivery.leases._thread.is_running
        finally:
            current_outbox.registry.clear()
            current_outbox.forget()
            database.close()


def renewed_again(event: OutboxEvent) -> Callable[[], bool]:
    before = stored(event).lease_until
    return lambda: bool(stored(event).lease_until > before)


@pytest.mark.parametrize("lease_seconds", [0.5, 30])
def test_a_lease_is_renewed_every_third_of_its_length(configure: Configure, lease_seconds: float) -> None:
    box = configure(lease_seconds=lease_seconds)
    assert box.delivery.leases._renew_every == pytest.approx(lease_seconds / 3)
