"""advance and run_all: time that passes in the tables, retries and delays included."""

from datetime import UTC, datetime, timedelta

import pytest

import outbox
from outbox import testing
from outbox.core import Outbox
from outbox.storage.models import DELIVERED, FAILED, PENDING, InboxMessage, OutboxEvent, Waiting
from outbox.storage.timestamp import LATEST, from_database
from outbox.testing.rolled_back import rolled_back
from tests.conftest import Configure
from tests.support.table import claimed, emit, emit_one, error_of, statuses, stored


def failing(times: int) -> list[int]:
    """Register a handler that fails so often; return the attempts that it saw."""
    attempts: list[int] = []

    @outbox.handler("order.*", name="fails")
    def fails(event: outbox.Event) -> None:
        attempts.append(event.attempt)
        if event.attempt <= times:
            raise ValueError(f"attempt {event.attempt}")

    return attempts


class TestAdvance:
    def test_a_retry_is_due_after_its_backoff_and_not_before(self, box: Outbox) -> None:
        attempts = failing(1)
        with rolled_back(box.database):
            event = emit_one()
            testing.deliver(raise_errors=False)
            testing.advance(seconds=55)
            assert (testing.deliver(), attempts) == (0, [1])
            testing.advance(seconds=10)
            assert (testing.deliver(), attempts) == (1, [1, 2])
            assert stored(event).status == DELIVERED

    def test_every_time_moves_and_what_is_parked_stays(self, box: Outbox) -> None:
        failing(9)
        first, second = emit(2, ordering_key="one", deliver_after=timedelta(hours=3), hold=True)
        testing.advance(hours=3)
        testing.deliver(raise_errors=False)
        claimed_one = emit_one("order.leased")
        OutboxEvent.delete().where(OutboxEvent.id == second.id).execute()
        Waiting.bind(box.database)
        parked = emit_one(ordering_key="one")
        testing.deliver(raise_errors=False)
        now = datetime.now(UTC)
        InboxMessage.insert(message_id="m", handler_name="h", processed_at=now).execute()
        OutboxEvent.update(lease_until=now).where(OutboxEvent.id == claimed_one.id).execute()
        before = {row.id: row for row in OutboxEvent.select()}
        waited_since = Waiting.get().since
        testing.advance(timedelta(hours=1), minutes=30)
        moved = timedelta(hours=1, minutes=30)
        for row in OutboxEvent.select():
            old = before[row.id]
            for name in ("created_at", "updated_at"):
                assert abs(getattr(old, name) - getattr(row, name) - moved) < timedelta(milliseconds=2)
        row, old = stored(first), before[first.id]
        assert abs(old.next_attempt_at - row.next_attempt_at - moved) < timedelta(milliseconds=2)
        entry, old_entry = row.progress["fails"], old.progress["fails"]
        moments = ("since", "not_before", "first_due")
        assert {from_database(old_entry[key]) - from_database(entry[key]) for key in moments} == {moved}
        assert entry | dict.fromkeys(moments) == old_entry | dict.fromkeys(moments)
        assert stored(parked).next_attempt_at == LATEST
        assert waited_since - Waiting.get().since - moved < timedelta(milliseconds=2)
        assert before[claimed_one.id].lease_until - stored(claimed_one).lease_until >= moved - timedelta(milliseconds=2)
        assert now - InboxMessage.get().processed_at - moved < timedelta(milliseconds=2)

    def test_time_does_not_go_back(self, box: Outbox) -> None:
        with pytest.raises(ValueError, match="Time only passes"):
            testing.advance(hours=-1)

    def test_an_old_event_that_is_unavailable_for_too_long_fails(self, box: Outbox) -> None:
        @outbox.handler("order.placed", name="gone")
        def gone(event: outbox.Event) -> None:
            raise outbox.Unavailable("gone")

        event = emit_one()
        testing.deliver(raise_errors=False)
        testing.advance(days=4)
        testing.deliver(raise_errors=False)
        assert (stored(event).status, "OUTBOX_MAX_AGE_HOURS" in error_of(event)) == (FAILED, True)


class TestRunAll:
    def test_retries_and_delays_are_run(self, box: Outbox) -> None:
        attempts = failing(3)
        with rolled_back(box.database):
            emit(1)
            emit(1, "order.later", deliver_after=timedelta(days=3))
            assert testing.run_all() == 2
            assert attempts == [1, 2, 3, 4] * 2
            assert statuses() == {DELIVERED: 2}

    def test_a_lease_of_another_worker_runs_out(self, box: Outbox) -> None:
        failing(0)
        emit(1)
        claimed(box)
        assert testing.run_all() == 1

    def test_an_event_that_fails_for_good_raises_the_last_error(self, box: Outbox) -> None:
        failing(9)
        event = emit_one()
        with pytest.raises(ValueError, match="attempt 5"):
            testing.run_all()
        assert stored(event).status == FAILED

    def test_it_may_be_left_failed(self, box: Outbox) -> None:
        failing(9)
        event = emit_one()
        assert testing.run_all(raise_errors=False) == 0
        assert stored(event).status == FAILED

    def test_what_waits_behind_a_failed_event_of_its_key_is_named(self, box: Outbox) -> None:
        failing(9)
        emit(2, ordering_key="one")
        with pytest.raises(testing.NotFinished) as caught:
            testing.run_all()
        text = str(caught.value)
        assert "1 still waiting, and no time that passes makes them due" in text
        assert "order.placed  Order:1" in text
        assert "fails: waits behind an earlier event with the ordering key 'one'" in text

    def test_it_ends_after_so_many_rounds_and_says_what_waits_and_why(self, box: Outbox) -> None:
        @outbox.handler("order.placed", name="gone")
        def gone(event: outbox.Event) -> None:
            raise outbox.Unavailable("no route to host")

        event = emit_one()
        with pytest.raises(
            testing.NotFinished, match=r"after 3 rounds:\n.*order.placed.*\n +gone: no route.*due at 20"
        ):
            testing.run_all(rounds=3)
        assert stored(event).status == PENDING

    def test_an_event_that_nothing_handles_ends_and_says_so(self, configure: Configure) -> None:
        configure()
        failing(0)
        event = emit_one("user.created", aggregate_type="User")
        with pytest.raises(testing.NotAccepted, match=r"user.created User:0 .*nothing here handles 'user.created'"):
            testing.run_all()
        assert "nothing here handles 'user.created'" in error_of(event)
