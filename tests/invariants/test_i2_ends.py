"""Committed ⇒ in the end delivered or failed, visibly; never in limbo, whatever crashes."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import outbox
from outbox.core import Outbox
from outbox.delivery.claim import claim
from outbox.storage.models import DELIVERED, FAILED, PENDING, SENDING, OutboxEvent
from outbox.throttle.throttles import Throttles
from tests.conftest import Configure
from tests.support.table import claimed, emit, emit_one, expire_leases, let_pass, statuses, stored

MAX_ATTEMPTS = 3

STEPS = st.sampled_from(["crash", "refuse", "unavailable", "reject", "take", "stop"])


def crash(box: Outbox) -> None:
    """Claim as a worker that dies before it settles."""
    claim(box.delivery, 100)
    expire_leases()


def handler_for(step: str) -> None:
    answers = {"refuse": ValueError("no"), "unavailable": outbox.Unavailable("down"), "reject": outbox.Reject("never")}

    @outbox.handler("*", name="fickle")
    def handle(_: outbox.Event) -> None:
        if step in answers:
            raise answers[step]


def work(box: Outbox, step: str) -> None:
    """Deliver as one worker that finds what is due."""
    box.registry.clear()
    handler_for(step)
    if step == "crash":
        crash(box)
    elif step == "stop":
        box.stopping.set()
        box.process_pending_events()
        box.stopping.clear()
    else:
        box.process_pending_events()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=8))
def test_an_event_ends_whatever_happens_on_the_way(box: Outbox, steps: list[str]) -> None:
    OutboxEvent.delete().execute()  # those of earlier examples
    event = emit_one(max_attempts=MAX_ATTEMPTS)
    for step in steps:
        work(box, step)
        let_pass(hours=1)
        row = stored(event)
        assert (row.next_attempt_at is None) == (row.status in {DELIVERED, FAILED})
    for _ in range(2):
        work(box, "take")
        let_pass(hours=2)
    assert stored(event).status in {DELIVERED, FAILED}


class TestAnEventThatKillsItsWorkers:
    @pytest.mark.parametrize(("deaths", "status"), [(2, DELIVERED), (3, FAILED)])
    def test_it_fails_unsent_when_its_attempts_are_used_up(self, box: Outbox, deaths: int, status: str) -> None:
        called: list[outbox.Event] = []
        outbox.handler("*", name="deadly")(called.append)
        event = emit_one(max_attempts=3)
        for _ in range(deaths):
            crash(box)
        box.process_pending_events()
        assert stored(event).status == status
        assert len(called) == int(status == DELIVERED)

    def test_its_end_says_why(self, box: Outbox) -> None:
        outbox.handler("*", name="deadly")(lambda _: None)
        event = emit_one(max_attempts=2)
        crash(box)
        crash(box)
        box.process_pending_events()
        row = stored(event)
        assert (row.status, row.attempts) == (FAILED, 2)
        assert row.error_message == "deadly: the worker died, or lost its lease, during attempt 2; not sent again"

    def test_it_can_be_retried_with_all_its_attempts(self, box: Outbox) -> None:
        outbox.handler("*", name="mended")(lambda _: None)
        event = emit_one(max_attempts=2)
        crash(box)
        crash(box)
        box.process_pending_events()
        box.retry_failed_events()
        box.process_pending_events()
        assert (stored(event).status, stored(event).attempts) == (DELIVERED, 1)


def test_a_crashed_workers_events_are_claimed_again_without_any_clean_up(box: Outbox) -> None:
    outbox.handler("*", name="taker")(lambda _: None)
    emit(5)
    claimed(box)
    assert statuses() == {SENDING: 5}
    let_pass(seconds=box.settings.lease_seconds + 1)
    while box.process_pending_events()["processed"]:
        pass
    assert statuses() == {DELIVERED: 5}
    assert {event.attempts for event in OutboxEvent.select()} == {1}


def test_an_outage_of_a_day_fails_nothing(configure: Configure) -> None:
    box, up = configure(), False

    @outbox.handler("*", name="remote")
    def handle(_: outbox.Event) -> None:
        if not up:
            raise outbox.Unavailable("connection refused")

    hours = 0

    def deliver_for(number: int) -> None:
        nonlocal hours
        for _ in range(number):
            box.process_pending_events()
            let_pass(hours=1)
            hours += 1

    throttles = Throttles(box.settings, clock=lambda: 3600 * hours)
    box.delivery = replace(box.delivery, throttles=throttles)
    emit(20, max_attempts=1)
    deliver_for(24)
    assert statuses() == {PENDING: 20}
    up = True
    deliver_for(3)  # first one event, to see whether it is back, then the others
    assert statuses() == {DELIVERED: 20}
