"""An event whose lease expired is alone in its process: if it kills its worker, it costs no other event an attempt."""

from threading import Event as Gate

import pytest

import outbox
from outbox.core import Outbox
from outbox.delivery.quarantine import Quarantine
from outbox.storage.models import DELIVERED, SENDING
from tests.conftest import Configure
from tests.support.notifications import replace_wake
from tests.support.outbox_parts import replace_delivery
from tests.support.servers import PATIENCE_SECONDS
from tests.support.table import (
    another,
    at_work,
    becomes_true,
    claimed,
    emit_one,
    expire_leases,
    passes,
    stored,
)

pytestmark = pytest.mark.usefixtures("usual_slices")


class Busy:
    """A handler that does not return from a `slow` event until its gate opens."""

    def __init__(self) -> None:
        self.begun, self.gate = Gate(), Gate()
        outbox.handler("slow", name="slow")(self._wait)
        outbox.handler("quick", name="quick")(lambda _: None)

    def _wait(self, _: outbox.Event) -> None:
        self.begun.set()
        passes(self.gate)


def with_expired_lease(box: Outbox, event_type: str) -> outbox.OutboxEvent:
    """Emit an event, and return it as one whose worker has died."""
    event = emit_one(event_type)
    claimed(another(box))
    expire_leases(event)
    return event


def replace_quarantine(box: Outbox, search_every: float | None = None, **times: float) -> None:
    """Give the outbox a new quarantine, with these times."""
    every = box.settings.lease_seconds if search_every is None else search_every
    replace_delivery(box, quarantine=Quarantine(every, **times))


class TestWhileAnotherBatchIsInFlight:
    def test_only_events_without_an_expired_lease_are_claimed(self, box: Outbox) -> None:
        busy = Busy()
        emit_one("slow")
        with at_work(box, busy.gate):
            passes(busy.begun)
            taken_over = with_expired_lease(box, "quick")
            other = emit_one("quick")
            assert box.process_pending_events()["processed"] == 1
            assert (stored(taken_over).status, stored(other).status) == (SENDING, DELIVERED)
            # Another process has nothing else in flight.
            assert another(box).process_pending_events()["processed"] == 1
            assert stored(taken_over).status == DELIVERED

    def test_it_is_claimed_as_soon_as_the_other_batch_has_ended(self, box: Outbox) -> None:
        busy = Busy()
        emit_one("slow")
        with at_work(box, busy.gate) as worker:
            passes(busy.begun)
            taken_over = with_expired_lease(box, "quick")
            busy.gate.set()
            worker.result()
        box.process_pending_events()
        assert stored(taken_over).status == DELIVERED

    def test_it_does_not_wait_for_ever(self, configure: Configure) -> None:
        box = configure(lease_seconds=0.5)  # and how often claims include expired leases
        replace_quarantine(box, patience_seconds=0.01)
        busy = Busy()
        emit_one("slow")
        with at_work(box, busy.gate):
            passes(busy.begun)
            taken_over = with_expired_lease(box, "quick")
            becomes_true(lambda: box.process_pending_events()["processed"] == 1)
            assert stored(taken_over).status == DELIVERED

    def test_a_batch_that_takes_long_is_not_waited_for(self, box: Outbox) -> None:
        replace_quarantine(box, patience_seconds=0.3)
        busy = Busy()
        emit_one("slow")
        try:
            box.drain()  # which turns away from it
            passes(busy.begun)
            taken_over = with_expired_lease(box, "quick")
            becomes_true(lambda: box.drain() == 1)
            assert stored(taken_over).status == DELIVERED
            assert not box.delivery.quarantine.wait_until_idle(0)
        finally:
            busy.gate.set()

    def test_a_batch_that_has_just_begun_is_waited_for(self, box: Outbox) -> None:
        replace_quarantine(box, search_every=0.0, patience_seconds=PATIENCE_SECONDS)
        busy = Busy()
        emit_one("slow")
        box.drain()
        passes(busy.begun)
        taken_over = with_expired_lease(box, "quick")
        with at_work(box, busy.gate) as looking:
            becomes_true(lambda: box.delivery.quarantine._searching is not None)
            assert stored(taken_over).attempts == 1
            busy.gate.set()
            assert looking.result()["processed"] == 1
        assert stored(taken_over).status == DELIVERED


class TestWhileAnEventFromAnExpiredLeaseIsInFlight:
    def test_this_process_claims_nothing_else_and_makes_up_for_the_refused_claim(self, box: Outbox) -> None:
        replace_quarantine(box, alone_seconds=PATIENCE_SECONDS)
        notified = Gate()
        replace_wake(box, notified.set)
        busy = Busy()
        with_expired_lease(box, "slow")
        with at_work(box, busy.gate) as worker:
            passes(busy.begun)
            other = emit_one("quick")
            box.notifier.flush()
            notified.clear()
            assert box.process_pending_events()["processed"] == 0
            assert another(box).process_pending_events()["processed"] == 1
            assert stored(other).status == DELIVERED
            assert not notified.is_set()
            busy.gate.set()
            worker.result()
        passes(notified)

    def test_after_its_first_seconds_other_events_are_claimed_beside_it(self, box: Outbox) -> None:
        replace_quarantine(box, alone_seconds=0.3)
        notified = Gate()
        busy = Busy()
        taken_over = with_expired_lease(box, "slow")
        other = emit_one("quick")
        replace_wake(box, notified.set)
        with at_work(box, busy.gate):
            passes(busy.begun)
            box.process_pending_events()
            passes(notified)  # when it has been alone for long enough, not when it has ended
            becomes_true(lambda: box.process_pending_events() and stored(other).status == DELIVERED)
            assert stored(taken_over).status == SENDING

    def test_events_from_expired_leases_go_one_at_a_time_while_others_go_on(self, box: Outbox) -> None:
        replace_quarantine(box, alone_seconds=0.0, patience_seconds=0.0)
        busy = Busy()
        with_expired_lease(box, "slow")
        with at_work(box, busy.gate):
            passes(busy.begun)
            second = with_expired_lease(box, "quick")
            for _ in range(3):
                other = emit_one("quick")
                assert box.process_pending_events()["processed"] == 1
                assert (stored(second).status, stored(other).status) == (SENDING, DELIVERED)
        box.process_pending_events()
        assert stored(second).status == DELIVERED

    def test_one_that_takes_very_long_does_not_keep_the_next_one_waiting(self, configure: Configure) -> None:
        box = configure(lease_seconds=0.5)  # and how long it does
        replace_quarantine(box, alone_seconds=0.01, patience_seconds=0.01)
        busy = Busy()
        with_expired_lease(box, "slow")
        with at_work(box, busy.gate):
            passes(busy.begun)
            second = with_expired_lease(box, "quick")
            becomes_true(lambda: box.process_pending_events()["processed"] == 1)
            assert stored(second).status == DELIVERED


class TestWaitingUntilNothingIsInFlight:
    def test_it_returns_at_once_if_nothing_is_in_flight(self, box: Outbox) -> None:
        assert box.delivery.quarantine.wait_until_idle(PATIENCE_SECONDS)
        emit_one()
        box.process_pending_events()
        assert box.delivery.quarantine.wait_until_idle(0)

    def test_it_waits_no_longer_than_it_is_told(self, box: Outbox) -> None:
        busy = Busy()
        emit_one("slow")
        box.drain()
        try:
            assert not box.delivery.quarantine.wait_until_idle(0.05)
        finally:
            busy.gate.set()

    def test_it_returns_when_the_last_batch_has_been_settled(self, configure: Configure) -> None:
        box = configure(batch_size=1)
        busy = Busy()
        events = [emit_one("slow"), emit_one("slow")]
        while box.drain():
            pass
        busy.gate.set()
        assert box.delivery.quarantine.wait_until_idle(PATIENCE_SECONDS)
        assert {stored(event).status for event in events} == {DELIVERED}

    def test_a_claim_that_found_nothing_is_not_in_flight(self, box: Outbox) -> None:
        assert box.drain() == 0
        assert box.delivery.quarantine.wait_until_idle(0)
