"""settle: what became of an event, written under the fence of its lease."""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Event as Gate
from threading import Lock, Semaphore
from uuid import uuid4

import peewee
import pytest

import outbox
from outbox import current_outbox
from outbox.core import Outbox
from outbox.delivery.batch import Delivery
from outbox.delivery.dispatch import dispatch
from outbox.delivery.settle import close, give_back, persist, settle
from outbox.storage.models import DELIVERED, FAILED, PENDING, SENDING, OutboxEvent
from outbox.storage.progress import delivered
from outbox.telemetry.counters import Series
from tests.support.servers import PATIENCE_SECONDS
from tests.support.table import (
    change,
    claimed,
    emit,
    emit_one,
    end_connections,
    expire_leases,
    let_pass,
    on_postgres,
    passes,
    statements,
    statuses,
    stored,
)


def refuse(_: outbox.Event) -> None:
    raise ValueError("no")


class TestWhatIsWritten:
    def test_a_delivered_event_has_no_due_time_no_lease_and_no_progress(self, box: Outbox) -> None:
        outbox.handler("*", name="taker")(lambda _: None)
        event = emit_one()
        box.process_pending_events()
        row = stored(event)
        assert (row.status, row.attempts) == (DELIVERED, 1)
        assert row.delivered_at == row.updated_at >= row.created_at
        left = (row.next_attempt_at, row.lease_id, row.lease_until, row.progress, row.error_message)
        assert left == (None,) * 5

    def test_a_refused_event_waits_with_its_error_and_progress(self, box: Outbox) -> None:
        outbox.handler("*", name="refuser")(refuse)
        event = emit_one()
        box.process_pending_events()
        row = stored(event)
        assert (row.status, row.attempts, row.error_message) == (PENDING, 1, "refuser: ValueError: no")
        assert (row.lease_id, row.lease_until, row.delivered_at) == (None, None, None)
        assert abs(row.next_attempt_at - row.updated_at - timedelta(seconds=60)) < timedelta(seconds=5)
        assert row.progress["refuser"]["attempts"] == 1

    def test_a_failed_event_keeps_its_error_and_is_due_no_more(self, box: Outbox) -> None:
        outbox.handler("*", name="refuser")(refuse)
        event = emit_one(max_attempts=1)
        box.process_pending_events()
        row = stored(event)
        assert (row.status, row.attempts, row.error_message) == (FAILED, 1, "refuser: ValueError: no")
        assert (row.next_attempt_at, row.delivered_at, row.lease_id, row.lease_until) == (None,) * 4

    def test_a_success_after_failures_keeps_the_number_of_attempts_and_clears_the_error(self, box: Outbox) -> None:
        attempts: list[int] = []

        @outbox.handler("*", name="slow to take")
        def handle(event: outbox.Event) -> None:
            attempts.append(event.attempt)
            if event.attempt < 3:
                raise ValueError("not yet")

        event = emit_one()
        for _ in range(3):
            box.process_pending_events()
            let_pass(hours=1)
        row = stored(event)
        assert attempts == [1, 2, 3]
        assert (row.status, row.attempts, row.error_message, row.progress) == (DELIVERED, 3, None, None)

    def test_each_event_of_a_mixed_batch_is_written_with_its_own_outcome(self, box: Outbox) -> None:
        outbox.handler("taken")(lambda _: None)
        outbox.handler("refused")(refuse)
        for event_type in ("taken", "refused"):
            emit(20, event_type)
        emit(20, "refused", max_attempts=1)
        box.process_pending_events()
        assert statuses() == {DELIVERED: 20, PENDING: 20, FAILED: 20}
        counted = (box.counters["delivered"], box.counters["retried"], box.counters["failed"], box.counters["fenced"])
        assert counted == (20, 20, 20, 0)

    def test_nothing_finished_is_no_statement(self, box: Outbox) -> None:
        emit(1)
        batch = claimed(box)
        with statements(box.database) as seen:
            settle(box.delivery, batch)
        assert seen == []


class TestLatency:
    @pytest.mark.parametrize("trouble", [ValueError("no"), outbox.Unavailable("down"), outbox.RetryLater(30)])
    def test_it_is_counted_from_when_the_event_was_first_due_also_after_retries(
        self, box: Outbox, trouble: Exception
    ) -> None:
        troubles = [trouble, trouble]

        @outbox.handler("order.*", name="moody")
        def handle(_: outbox.Event) -> None:
            if troubles:
                raise troubles.pop()

        event = emit_one(deliver_after=timedelta(days=1))
        let_pass(days=1)
        box.process_pending_events()
        let_pass(minutes=2)
        box.process_pending_events()
        let_pass(minutes=3)
        box.process_pending_events()
        assert stored(event).status == DELIVERED
        assert 300 <= latency_of(box) < 1000

    def test_without_a_time_of_its_own_it_is_counted_from_the_commit(self, box: Outbox) -> None:
        outbox.handler("order.*", name="moody")(lambda event: refuse(event) if event.attempt == 1 else None)
        emit_one()
        box.process_pending_events()
        let_pass(minutes=2)
        box.process_pending_events()
        assert 120 <= latency_of(box) < 800

    def test_after_an_operator_has_put_it_back_it_is_counted_from_then(self, box: Outbox) -> None:
        outbox.handler("order.*", name="moody")(lambda event: refuse(event) if event.attempt == 1 else None)
        emit_one(max_attempts=1)
        box.process_pending_events()
        let_pass(days=1)
        current_outbox.registry.clear()
        outbox.handler("order.*", name="moody")(lambda _: None)
        box.retry_failed_events()
        box.process_pending_events()
        assert latency_of(box) < 600

    def test_an_event_whose_worker_died_is_counted_from_when_it_was_due(self, box: Outbox) -> None:
        outbox.handler("order.*", name="taker")(lambda _: None)
        emit_one(deliver_after=timedelta(days=1))
        let_pass(days=1)
        claimed(box)
        expire_leases()
        box.process_pending_events()
        assert latency_of(box) < 600


def latency_of(box: Outbox) -> float:
    """Return how many seconds all delivered events together have waited."""
    return box.counters.take()[Series("latency_sum")]


class TestTheFence:
    @pytest.mark.parametrize("max_attempts", [1, 5])
    @pytest.mark.parametrize("handler", [refuse, lambda _: None])
    def test_a_late_outcome_is_a_counted_no_op(self, box: Outbox, handler: object, max_attempts: int) -> None:
        outbox.handler("*", name="handler")(handler)  # type: ignore[type-var]
        event = emit_one(max_attempts=max_attempts)
        late = claimed(box)
        expire_leases()
        holder = claimed(box)
        dispatch(box.delivery, late)
        row = stored(event)
        assert (row.status, row.attempts, row.lease_id) == (SENDING, 2, holder.lease_id)
        assert (row.progress, row.error_message, row.delivered_at) == (None, None, None)
        assert box.counters["fenced"] == 1

    def test_a_late_give_back_is_a_counted_no_op(self, box: Outbox) -> None:
        event = emit_one()
        late = claimed(box)
        expire_leases()
        holder = claimed(box)
        assert give_back(box.delivery, late) == 0
        row = stored(event)
        assert (row.status, row.attempts, row.lease_id) == (SENDING, 2, holder.lease_id)
        assert (box.counters["fenced"], box.counters["released"]) == (1, 0)

    def test_an_outcome_after_the_lease_expired_counts_unless_another_worker_has_taken_over(self, box: Outbox) -> None:
        outbox.handler("*", name="taker")(lambda _: None)
        event = emit_one()
        batch = claimed(box)
        expire_leases()
        dispatch(box.delivery, batch)
        assert stored(event).status == DELIVERED
        assert box.counters["fenced"] == 0

    def test_only_lost_events_are_fenced(self, box: Outbox) -> None:
        outbox.handler("*", name="taker")(lambda _: None)
        lost, *kept = emit(3)
        batch = claimed(box)
        change(lost, lease_id=emit_one().id)
        dispatch(box.delivery, batch)
        assert [stored(event).status for event in (lost, *kept)] == [SENDING, DELIVERED, DELIVERED]
        assert box.counters["fenced"] == 1


class TestGivingBack:
    def test_events_that_have_not_begun_go_back_as_if_never_claimed(self, box: Outbox) -> None:
        event = emit_one()
        before = stored(event)
        batch = claimed(box)
        assert give_back(box.delivery, batch) == 1
        row = stored(event)
        assert (row.status, row.attempts, row.lease_id, row.lease_until) == (PENDING, 0, None, None)
        assert row.next_attempt_at == before.next_attempt_at

    def test_events_that_were_given_back_are_not_claimed_alone(self, box: Outbox) -> None:
        emit(2)
        give_back(box.delivery, claimed(box))
        assert [event.from_expired_lease for event in claimed(box).events] == [False, False]

    def test_events_that_have_begun_are_not_given_back(self, box: Outbox) -> None:
        begun, other = emit(2)
        batch = claimed(box)
        assert batch.begin(Delivery(batch.events[0], {}), "somewhere", time.monotonic())
        assert give_back(box.delivery, batch) == 1
        assert (stored(begun).status, stored(other).status) == (SENDING, PENDING)


class Noticed:
    """A lock that counts the threads that have tried to acquire it."""

    def __init__(self) -> None:
        self.came = Semaphore(0)
        self._lock = Lock()

    def __enter__(self) -> None:
        self.came.release()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_an_outage_is_one_line_of_the_log_however_many_the_driver_s_error_has(
    box: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    emit(1)
    errors = [peewee.OperationalError("Connection refused\n\tIs the server running?\n")]

    def write() -> int:
        if errors:
            raise errors.pop()
        return 1

    assert persist(box.delivery, claimed(box), write) == 1
    (line,) = [each.getMessage() for each in caplog.records if "could not be written" in each.getMessage()]
    assert line.endswith("trying again: Connection refused Is the server running?")


def test_a_batch_is_not_over_while_another_thread_writes_its_outcomes(
    box: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox.handler("order.*", name="taker")(lambda _: None)
    event = emit_one()
    batch, gate, order = claimed(box), Gate(), list[str]()
    monkeypatch.setattr(batch, "writing", noticed := Noticed())
    (delivery,) = [Delivery(each, {"taker": delivered(1)}) for each in batch.events]
    batch.finish(delivery)

    def write(*_: object) -> int:
        passes(gate)
        order.append("written")
        return 1

    monkeypatch.setattr(sys.modules[settle.__module__], "persist", write)
    with ThreadPoolExecutor(2) as executor:
        writing = executor.submit(settle, box.delivery, batch)
        assert noticed.came.acquire(timeout=PATIENCE_SECONDS)
        closing = executor.submit(close, box.delivery, batch)
        closing.add_done_callback(lambda _: order.append("closed"))
        try:
            assert noticed.came.acquire(timeout=PATIENCE_SECONDS)
        finally:
            gate.set()
        writing.result(PATIENCE_SECONDS)
        closing.result(PATIENCE_SECONDS)
    assert order == ["written", "closed"]
    assert stored(event).status == SENDING  # this test's `write` writes nothing


class TestFailures:
    def test_of_a_batch_are_written_by_one_statement(self, box: Outbox) -> None:
        outbox.handler("*", name="refusing")(refuse)
        events = emit(30)
        with statements(box.database) as seen:
            box.process_pending_events()
        settling = [each for each in seen if each.lstrip().startswith("UPDATE") and "error_message" in each]
        assert len(settling) == (1 if box.dialect.name == "postgres" else 30)
        rows = [stored(event) for event in events]
        assert {(row.status, row.attempts, row.error_message) for row in rows} == {
            (PENDING, 1, "refusing: ValueError: no")
        }
        assert len({row.next_attempt_at for row in rows}) > 1  # with jitter: each row has its own

    def test_that_are_put_off_for_the_same_reason_have_ten_lines_in_the_log_and_one_for_the_rest(
        self, box: Outbox, caplog: pytest.LogCaptureFixture
    ) -> None:
        @outbox.handler("*", name="refusing")
        def refuse_some(event: outbox.Event) -> None:
            raise ValueError("rare" if event.aggregate_id == "13" else "frequent")

        emit(14)
        box.process_pending_events()
        lines = [line for line in caplog.messages if line.startswith("put off")]
        assert sum("rare" in line for line in lines) == 1
        assert sum(line.startswith("put off until") and "frequent" in line for line in lines) == 10
        assert lines[-1] == "put off likewise: 3 more events of this batch: refusing: ValueError: frequent"
        assert len(lines) == 12

    def test_that_are_final_have_a_line_in_the_log_each(self, box: Outbox, caplog: pytest.LogCaptureFixture) -> None:
        @outbox.handler("*", name="rejecting")
        def reject(_: outbox.Event) -> None:
            raise outbox.Reject("closed")

        emit(14)
        box.process_pending_events()
        assert sum(line.startswith("failed: ") for line in caplog.messages) == 14


@on_postgres
class TestSynchronousCommit:
    """Losing a claim or a settle in a crash of the database only means delivering again; an emit must not be lost."""

    @pytest.mark.parametrize("step", ["claim", "delivered", "settled", "released", "renewed"])
    def test_deliveries_do_not_wait_for_it_and_leave_the_connection_as_it_was(self, box: Outbox, step: str) -> None:
        event = emit_one()
        statement, parameters = getattr(box.dialect.statements, step), self.parameters(event)[step]
        box.database.execute_sql("SET synchronous_commit = on")
        with box.database.atomic():
            box.database.execute_sql(statement, parameters)
            assert waits_for_the_disk(box) == "off"
        assert waits_for_the_disk(box) == "on"

    def test_an_emit_waits_for_it_as_its_transaction_does(self, box: Outbox) -> None:
        box.database.execute_sql("SET synchronous_commit = on")
        with box.database.atomic():
            emit_one()
            outbox.emit("Order", 1, "order.placed")
            assert waits_for_the_disk(box) == "on"

    def parameters(self, event: OutboxEvent) -> dict[str, tuple[object, ...]]:
        lease, several = uuid4(), f"{{{event.id}}}"
        return {
            "claim": ("-infinity", True, 1, lease, 30.0),
            "delivered": (1, None, several, lease),
            "settled": (json.dumps({str(event.id): {"status": "pending", "attempts": 1}}), several, lease),
            "released": (several, lease),
            "renewed": (30.0, several, f"{{{lease}}}"),
        }


def waits_for_the_disk(box: Outbox) -> str:
    return str(box.database.execute_sql("SHOW synchronous_commit").fetchone()[0])


@on_postgres
class TestThroughALostConnection:
    def test_outcomes_are_written_on_a_new_one(self, box: Outbox, postgres_url: str) -> None:
        @outbox.handler("*", name="unlucky")
        def handle(_: outbox.Event) -> None:
            end_connections(postgres_url)

        event = emit_one()
        box.process_pending_events()
        row = stored(event)
        assert (row.status, row.attempts) == (DELIVERED, 1)
