"""A destination that an operator has paused gets nothing, at no cost; one that is throttled gets so much a second."""

import functools
import logging
from datetime import timedelta
from typing import Any

import pytest

import outbox
from outbox import Unavailable
from outbox.core import Outbox
from outbox.destinations.controls import EVERYTHING
from outbox.destinations.limits import Limits
from outbox.destinations.outcome import Retry
from outbox.operations import controls
from outbox.storage import timestamp
from outbox.storage.models import DELIVERED, FAILED, PENDING, OutboxEvent
from outbox.storage.sooner import make_due_sooner
from tests.conftest import Configure
from tests.support.controls import (
    ALICE,
    controlled,
    let_controls_age,
    pause,
    recover,
    resume,
    throttle,
    unthrottle,
)
from tests.support.ordering import Receiver, crm, keyed, run, waiting
from tests.support.table import another, change, emit, emit_one, let_pass, statements, statuses, stored

__all__ = ["crm"]


def writes(seen: list[str]) -> list[str]:
    """The statements that write into the table of events."""
    return [each for each in seen if "UPDATE outbox_event" in each]


class Unreachable(Receiver):
    """A destination that can't be reached, until it is said to be up."""

    limits = Limits(open_after=1)
    up = False

    def outcome_of(self, event: Any) -> Any:
        return super().outcome_of(event) if self.up else Unavailable("connection refused")


@pytest.fixture
def down(box: Outbox) -> Unreachable:
    destination = Unreachable("down")
    outbox.add_destination(destination)
    return destination


class TestAPausedDestination:
    def test_it_gets_nothing_until_it_is_resumed_and_the_others_get_theirs(self, box: Outbox, crm: Receiver) -> None:
        other = Receiver("billing")
        outbox.add_destination(other)
        run(box)
        pause("crm")
        emit(3)
        run(box)
        assert (crm.ids(""), len(other.ids(""))) == ([], 3)
        assert resume("crm") == 3
        run(box)
        assert (len(crm.ids("")), len(other.ids(""))) == (3, 3)
        assert statuses() == {DELIVERED: 3}

    def test_waiting_costs_no_attempt_and_no_more_writes(self, box: Outbox, crm: Receiver, database: Any) -> None:
        pause("crm")
        event, *_ = emit(50)
        box.process_pending_events()
        with statements(database) as seen:
            for _ in range(5):
                assert box.process_pending_events()["processed"] == 0
        assert [each for each in seen if "SET status" in each and "sending" not in each] == []
        row = stored(event)
        assert (row.status, row.attempts, row.error_message) == (PENDING, 0, None)
        assert row.progress["crm"].keys() == {"state", "not_before", "reason"}

    def test_a_process_that_runs_obeys_with_its_next_claim_and_without_a_query_for_each(
        self, box: Outbox, crm: Receiver, database: Any
    ) -> None:
        worker = another(box)
        emit_one()
        worker.process_pending_events()
        with statements(database) as seen:
            emit(2)
            worker.process_pending_events()
        assert [each for each in seen if "controls" in each] == []
        pause("crm")
        emit(2)
        with statements(database) as seen:
            worker.process_pending_events()
        assert len([each for each in seen if "'controls'" in each]) == 2  # for the plan, and after it has put them off
        assert len(crm.ids("")) == 3

    def test_a_pause_with_an_end_ends_by_itself(self, box: Outbox, crm: Receiver) -> None:
        pause("crm", timedelta(minutes=30))
        event = emit_one()
        run(box)
        assert timedelta(minutes=29) < stored(event).next_attempt_at - event.created_at < timedelta(minutes=31)
        let_controls_age(box, minutes=31)
        let_pass(minutes=31)
        run(box)
        assert crm.calls[event.aggregate_id] == 1

    def test_without_an_end_it_is_looked_at_again_after_an_hour_and_still_waits(
        self, box: Outbox, crm: Receiver
    ) -> None:
        pause("crm")
        event = emit_one()
        run(box)
        for _ in range(2):
            let_pass(minutes=76)
            assert box.process_pending_events()["processed"] == 1
        assert (stored(event).status, crm.calls) == (PENDING, {})

    def test_it_waits_for_a_backoff_that_is_over_later(self, box: Outbox, crm: Receiver) -> None:
        crm.outcomes["0"] = Retry("not now", timedelta(hours=3))
        event = emit_one()
        run(box)
        due_at = stored(event).next_attempt_at
        pause("crm")
        assert resume("crm") == 0
        assert stored(event).next_attempt_at == due_at

    def test_the_first_event_of_a_key_is_put_off_and_the_others_wait_behind_it(
        self, box: Outbox, crm: Receiver
    ) -> None:
        pause("crm")
        keyed("1", "2", "3")
        run(box)
        assert waiting() == {"crm": ["2", "3"]}
        assert resume("crm") == 1
        run(box)
        assert crm.ids() == ["1", "2", "3"]

    def test_events_that_are_put_off_after_the_resuming_has_looked_are_due_at_once(
        self, box: Outbox, crm: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from outbox.delivery import settle

        pause("crm")
        event = emit_one()
        make = settle._make_resumed_due

        def resumed_meanwhile(*arguments: Any) -> int:
            with box.dialect.connection(), box.dialect.atomic():  # as `resume` does, before anything is put off
                box.dialect.run(box.dialect.statements.controls_set, ("{}",))
                box.dialect.run(box.dialect.statements.destinations_changed)
            return make(*arguments)

        monkeypatch.setattr(settle, "_make_resumed_due", resumed_meanwhile)
        box.process_pending_events()
        monkeypatch.undo()
        run(box)
        assert crm.calls == {event.aggregate_id: 1}

    @pytest.mark.parametrize("ordering_key", [None, "key"])
    def test_it_gets_its_events_after_the_pause_though_they_are_due_elsewhere_at_the_same_time(
        self, box: Outbox, crm: Receiver, ordering_key: str | None
    ) -> None:
        billing = Receiver("billing")
        outbox.add_destination(billing)
        pause("crm")
        event = emit_one(ordering_key=ordering_key)
        billing.outcomes[event.aggregate_id] = Retry("not yet")
        run(box)
        let_pass(minutes=2)  # the next attempt at the other destination is due
        resume("crm")
        run(box)
        assert (billing.calls.total(), crm.calls.total()) == (2, 1)

    def test_it_is_paused_in_the_middle_of_a_batch(self, box: Outbox, crm: Receiver) -> None:
        def paused_by_now(event: Any) -> Any:
            if not controlled(box).pauses:
                pause("crm")
                box.recorded_destinations.read()  # as another thread's claim does
            return Receiver.outcome_of(crm, event)

        crm.outcome_of = paused_by_now  # type: ignore[method-assign]
        emit(5)
        box.process_pending_events()
        assert len(crm.ids("")) == 1
        assert statuses() == {DELIVERED: 1, PENDING: 4}


class TestTheMaximumAge:
    @pytest.mark.parametrize(("hours", "status"), [(71.9, PENDING), (72.1, FAILED)])
    def test_it_does_not_count_the_time_of_a_pause(self, configure: Configure, hours: float, status: str) -> None:
        box = configure(max_age_hours=72)
        crm = Receiver("crm")
        outbox.add_destination(crm)
        event = emit_one()
        crm.outcomes["0"] = Unavailable("down", not_before=timedelta(seconds=1))
        box.process_pending_events()
        pause("crm")
        let_controls_age(box, hours=100)
        resume("crm")
        let_pass(hours=100 + hours)
        box.process_pending_events()
        assert stored(event).status == status

    def test_it_counts_a_pause_before_the_first_attempt_for_nothing(self, configure: Configure) -> None:
        box = configure(max_age_hours=72)
        crm = Receiver("crm")
        outbox.add_destination(crm)
        crm.outcomes["0"] = Unavailable("down", not_before=timedelta(seconds=1))
        pause("crm")
        let_controls_age(box, hours=100)
        resume("crm")
        event = emit_one()
        box.process_pending_events()
        let_pass(hours=72.1)
        box.process_pending_events()
        assert stored(event).status == FAILED


class TestEverythingPaused:
    def test_nothing_is_claimed_and_all_goes_on_afterwards(self, box: Outbox, crm: Receiver, database: Any) -> None:
        pause(EVERYTHING)
        emit(1)
        box.process_pending_events()  # the first claim of the process says that there are controls
        emit(3)
        with statements(database) as seen:
            assert box.process_pending_events() == {"processed": 0, "remaining": 3}
        assert writes(seen) == []
        assert crm.calls == {}
        assert resume(EVERYTHING) == 1
        run(box)
        assert statuses() == {DELIVERED: 4}

    def test_a_destination_that_is_paused_by_itself_stays_paused(self, box: Outbox, crm: Receiver) -> None:
        pause("crm")
        pause(EVERYTHING)
        resume(EVERYTHING)
        emit_one()
        run(box)
        assert (crm.calls, statuses()) == ({}, {PENDING: 1})


class TestAThrottledDestination:
    def test_it_gets_so_many_a_second_and_what_waits_is_due_when_that_ends(self, box: Outbox, crm: Receiver) -> None:
        throttle("crm", 0.5)
        events = emit(4)
        box.process_pending_events()
        assert len(crm.ids("")) == 1
        delays = sorted(stored(each).next_attempt_at - stored(each).updated_at for each in events[1:])
        assert delays[0] > timedelta(seconds=1)
        assert delays[-1] > timedelta(seconds=5)
        assert unthrottle("crm") == 3
        run(box)
        assert len(crm.ids("")) == 4

    def test_a_lower_limit_of_its_own_stays_in_force(self, box: Outbox) -> None:
        slow = Receiver("crm")
        slow.limits = Limits(per_second=0.5)  # type: ignore[attr-defined]
        outbox.add_destination(slow)
        throttle("crm", 1_000)
        emit(4)
        box.process_pending_events()
        assert len(slow.ids("")) == 1


class TestADestinationThatIsBack:
    def test_its_breaker_closes_and_what_waits_is_due_a_little_after_one_another(
        self, box: Outbox, down: Unreachable
    ) -> None:
        events = emit(30)
        box.process_pending_events()
        box.process_pending_events()
        down.up = True
        assert box.process_pending_events()["processed"] == 0
        assert recover(box, "down") == 30
        due = sorted(stored(each).next_attempt_at for each in events)
        assert timedelta(seconds=1) < due[-1] - due[0] < timedelta(seconds=2)
        change(next_attempt_at=due[0])
        box.process_pending_events()
        assert len(down.ids("")) > 0

    def test_what_it_has_refused_keeps_its_backoff(self, box: Outbox, crm: Receiver) -> None:
        crm.outcomes["0"] = Retry("no")
        event = emit_one()
        box.process_pending_events()
        due_at = stored(event).next_attempt_at
        assert recover(box, "crm") == 0
        assert stored(event).next_attempt_at == due_at

    def test_a_breaker_that_closes_by_itself_makes_due_what_waits(
        self, box: Outbox, down: Unreachable, database: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, logger="outbox")
        events = emit(20)
        box.drain()
        probe, *others = events
        let_pass(seconds=1)
        for name, state in box.throttles._shared_store()._states.items():  # type: ignore[attr-defined]
            box.throttles._shared_store().update(name, lambda found, now: (state_probed_at(found, now), None))
            assert state.is_open
        down.up = True
        change(probe, next_attempt_at=timestamp.EARLIEST, progress={"down": {"state": "waiting", "waits": 1}})
        with statements(database) as seen:
            box.drain()
        found = [each for each in seen if "chosen" in each or each.startswith("SELECT id, next_at")]
        assert len(found) == 1
        rows = [stored(each) for each in others]
        assert all(row.next_attempt_at is None or row.next_attempt_at - row.updated_at < timedelta(seconds=2)
                   for row in rows)  # fmt: skip
        assert "down was reached again" in caplog.text


def state_probed_at(state: Any, now: float) -> Any:
    """The state of an open breaker that may be probed now."""
    from dataclasses import replace

    return replace(state, open_until=now)


class TestMakingDueSooner:
    def test_one_call_reads_and_changes_a_limited_number_and_the_next_goes_on(
        self, box: Outbox, down: Unreachable
    ) -> None:
        emit(25)
        box.process_pending_events()
        counts = []
        done = make_due_sooner(box.dialect, "down", most_changed=10)
        counts.append(done.changed)
        while done.position is not None:
            done = make_due_sooner(box.dialect, "down", since=done.position, most_changed=10)
            counts.append(done.changed)
        assert sum(counts) == 25
        assert max(counts) == 10

    def test_it_ends_although_many_others_wait_at_the_same_time(self, box: Outbox, down: Unreachable) -> None:
        emit(25)
        box.process_pending_events()
        change(next_attempt_at=timestamp.LATEST - timedelta(days=1))
        done = make_due_sooner(box.dialect, "another", most_read=10)
        while done.position is not None:
            done = make_due_sooner(box.dialect, "another", since=done.position, most_read=10)
        assert done.changed == 0

    def test_an_operators_recover_ends_although_a_throttle_puts_events_off_again(
        self, box: Outbox, down: Unreachable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        emit(25)
        box.process_pending_events()
        put_off: list[None] = []

        def put_off_again() -> None:
            """As workers do: behind all others, with the time of the change."""
            assert len(put_off) < 9, "the same events are made due again and again"
            put_off.append(None)
            now = box.dialect.now()
            due = [event for event in OutboxEvent.select() if event.next_attempt_at <= now]
            change(*due, next_attempt_at=now + timedelta(hours=len(put_off)), updated_at=now)

        few = functools.partial(make_due_sooner, most_changed=10)
        monkeypatch.setattr("outbox.operations.controls.make_due_sooner", few)
        close = box.throttles.close_breaker
        ramp: dict[str, Any] = {"per_second": 1_000_000.0, "operator": ALICE, "force": True}
        assert controls.recover(box.dialect, put_off_again, close, "down", **ramp) == 25

    def test_it_leaves_out_what_a_worker_has_and_what_is_scheduled(self, box: Outbox, down: Unreachable) -> None:
        scheduled = emit_one(deliver_after=timedelta(hours=1))
        held = emit_one()
        box.process_pending_events()
        change(held, lease_id=scheduled.id)
        assert make_due_sooner(box.dialect, "down").changed == 0
