"""A suspect is alone in its process: whatever it does to its worker, it does to nobody else's event."""

from threading import Event as Gate

import pytest

import outbox
from outbox.core import Outbox
from outbox.delivery import quarantine
from outbox.storage.models import DELIVERED, SENDING
from tests.conftest import Configure
from tests.support.notifications import replace_wake
from tests.table import (
    PATIENCE_SECONDS,
    another,
    at_work,
    becomes_true,
    claimed,
    emit_one,
    expire_leases,
    passes,
    stored,
)


class Busy:
    """A handler that is in the middle of every `slow` event until its gate opens."""

    def __init__(self) -> None:
        self.begun, self.gate = Gate(), Gate()
        outbox.handler("slow", name="slow")(self._wait)
        outbox.handler("quick", name="quick")(lambda _: None)

    def _wait(self, _: outbox.Event) -> None:
        self.begun.set()
        passes(self.gate)


def a_suspect(box: Outbox, event_type: str) -> outbox.OutboxEvent:
    """An event whose worker has died."""
    event = emit_one(event_type)
    claimed(another(box))
    expire_leases(event)
    return event


class TestWhileAnotherBatchIsInFlight:
    def test_only_others_are_claimed(self, box: Outbox) -> None:
        busy = Busy()
        emit_one("slow")
        with at_work(box, busy.gate):
            passes(busy.begun)
            suspect = a_suspect(box, "quick")
            other = emit_one("quick")
            assert box.process_pending_events()["processed"] == 1
            assert (stored(suspect).status, stored(other).status) == (SENDING, DELIVERED)
            # Another process has nothing else in flight.
            assert another(box).process_pending_events()["processed"] == 1
            assert stored(suspect).status == DELIVERED

    def test_it_is_claimed_as_soon_as_that_has_ended(self, box: Outbox) -> None:
        busy = Busy()
        emit_one("slow")
        with at_work(box, busy.gate) as worker:
            passes(busy.begun)
            suspect = a_suspect(box, "quick")
            busy.gate.set()
            worker.result()
        box.process_pending_events()
        assert stored(suspect).status == DELIVERED

    def test_it_does_not_wait_for_ever(self, configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(quarantine, "PATIENCE_SECONDS", 0.01)
        box = configure(lease_seconds=0.5)  # and how often suspects are looked for
        busy = Busy()
        emit_one("slow")
        with at_work(box, busy.gate):
            passes(busy.begun)
            suspect = a_suspect(box, "quick")
            becomes_true(lambda: box.process_pending_events()["processed"] == 1)
            assert stored(suspect).status == DELIVERED

    def test_one_that_takes_long_is_not_waited_for(self, box: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(quarantine, "PATIENCE_SECONDS", 0.3)
        busy = Busy()
        emit_one("slow")
        try:
            box.drain()  # which turns away from it
            passes(busy.begun)
            suspect = a_suspect(box, "quick")
            becomes_true(lambda: box.drain() == 1)
            assert stored(suspect).status == DELIVERED
            assert not box.delivery.quarantine.wait_until_idle(0)
        finally:
            busy.gate.set()

    def test_one_that_has_just_begun_is_waited_for(self, box: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(quarantine, "PATIENCE_SECONDS", PATIENCE_SECONDS)
        monkeypatch.setattr(box.delivery.quarantine, "_search_every", 0.0)
        busy = Busy()
        emit_one("slow")
        box.drain()
        passes(busy.begun)
        suspect = a_suspect(box, "quick")
        with at_work(box, busy.gate) as looking:
            becomes_true(lambda: box.delivery.quarantine._searching is not None)
            assert stored(suspect).attempts == 1
            busy.gate.set()
            assert looking.result()["processed"] == 1
        assert stored(suspect).status == DELIVERED


class TestWhileASuspectIsInFlight:
    def test_nothing_else_is_claimed_here_and_what_was_turned_away_is_made_up_for(
        self, box: Outbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(quarantine, "ALONE_SECONDS", PATIENCE_SECONDS)
        rung = Gate()
        replace_wake(box, rung.set)
        busy = Busy()
        a_suspect(box, "slow")
        with at_work(box, busy.gate) as worker:
            passes(busy.begun)
            other = emit_one("quick")
            box.notifier.flush()
            rung.clear()
            assert box.process_pending_events()["processed"] == 0
            assert another(box).process_pending_events()["processed"] == 1
            assert stored(other).status == DELIVERED
            assert not rung.is_set()
            busy.gate.set()
            worker.result()
        passes(rung)

    def test_others_are_claimed_beside_one_that_has_not_killed_its_worker_at_once(
        self, box: Outbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(quarantine, "ALONE_SECONDS", 0.3)
        rung = Gate()
        busy = Busy()
        suspect = a_suspect(box, "slow")
        other = emit_one("quick")
        replace_wake(box, rung.set)
        with at_work(box, busy.gate):
            passes(busy.begun)
            box.process_pending_events()
            passes(rung)  # when it has been alone for long enough, not when it has ended
            becomes_true(lambda: box.process_pending_events() and stored(other).status == DELIVERED)
            assert stored(suspect).status == SENDING

    def test_suspects_go_one_at_a_time_while_others_go_on(self, box: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(quarantine, "ALONE_SECONDS", 0.0)
        monkeypatch.setattr(quarantine, "PATIENCE_SECONDS", 0.0)
        busy = Busy()
        a_suspect(box, "slow")
        with at_work(box, busy.gate):
            passes(busy.begun)
            second = a_suspect(box, "quick")
            for _ in range(3):
                other = emit_one("quick")
                assert box.process_pending_events()["processed"] == 1
                assert (stored(second).status, stored(other).status) == (SENDING, DELIVERED)
        box.process_pending_events()
        assert stored(second).status == DELIVERED

    def test_one_that_takes_very_long_keeps_no_other_from_its_turn(
        self, configure: Configure, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(quarantine, "ALONE_SECONDS", 0.01)
        monkeypatch.setattr(quarantine, "PATIENCE_SECONDS", 0.01)
        box = configure(lease_seconds=0.5)  # and how long it does
        busy = Busy()
        a_suspect(box, "slow")
        with at_work(box, busy.gate):
            passes(busy.begun)
            second = a_suspect(box, "quick")
            becomes_true(lambda: box.process_pending_events()["processed"] == 1)
            assert stored(second).status == DELIVERED


class TestWaitingUntilNothingIsInFlight:
    def test_it_is_true_at_once_where_nothing_is(self, box: Outbox) -> None:
        assert box.delivery.quarantine.wait_until_idle(PATIENCE_SECONDS)
        emit_one()
        box.process_pending_events()
        assert box.delivery.quarantine.wait_until_idle(0)

    def test_what_goes_on_is_waited_for_so_long_and_no_longer(self, box: Outbox) -> None:
        busy = Busy()
        emit_one("slow")
        box.drain()
        try:
            assert not box.delivery.quarantine.wait_until_idle(0.05)
        finally:
            busy.gate.set()

    def test_it_is_true_when_the_last_batch_has_been_settled(self, configure: Configure) -> None:
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
