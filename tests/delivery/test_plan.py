"""plan: which destinations an event goes to now, and what is decided without calling any."""

import pytest

import outbox
from outbox.core import Outbox
from outbox.delivery.batch import Delivery
from outbox.delivery.plan import plan
from outbox.storage.models import DELIVERED, FAILED, OutboxEvent
from outbox.storage.progress import NO_DESTINATION, NOT_REGISTERED, OTHER_DESTINATIONS, WAITING
from outbox.storage.timestamp import to_text
from tests.support.table import LONG_AGO, change, claimed, emit_one, expire_leases

FAR_AHEAD = LONG_AGO.replace(year=2120)


def register(*names: str, event_type: str = "order.placed") -> None:
    for name in names:
        outbox.handler(event_type, name=name)(lambda _: None)


def planned(box: Outbox, event: OutboxEvent) -> tuple[Delivery, list[str]]:
    """Plan the event as this worker would; return the delivery and the names of the destinations to call."""
    batch = claimed(box)
    (claimed_event,) = [each for each in batch.events if each.id == event.id]
    audiences = box.delivery.audiences.look_up({claimed_event.destinations_version}, {claimed_event.event_type})
    delivery, destinations = plan(box.delivery, claimed_event, audiences[claimed_event.event_type], batch.clock.now())
    return delivery, [destination.name for destination in destinations]


def test_a_new_event_goes_to_every_destination_that_wants_its_type(box: Outbox) -> None:
    register("a", "b")
    register("c", event_type="order.paid")
    delivery, names = planned(box, emit_one())
    assert names == ["a", "b"]
    assert delivery.awaited == ("a", "b")


def test_only_those_that_are_due_are_called_again(box: Outbox) -> None:
    register("has it", "failed", "later", "due", "new")
    event = emit_one()
    progress = {
        "has it": {"state": DELIVERED, "attempts": 1},
        "failed": {"state": FAILED, "attempts": 5, "error": "no"},
        "later": {"state": WAITING, "attempts": 1, "not_before": to_text(FAR_AHEAD)},
        "due": {"state": WAITING, "attempts": 2, "not_before": to_text(LONG_AGO)},
    }
    change(event, progress=progress)
    delivery, names = planned(box, event)
    assert names == ["due", "new"]
    assert [delivery.progress[name].attempts for name in ("due", "new")] == [2, 0]


def test_a_destination_that_is_registered_later_replaces_the_entry_of_no_destination(box: Outbox) -> None:
    register("a")
    event = emit_one()
    change(event, progress={NO_DESTINATION: {"state": WAITING, "waits": 3, "not_before": to_text(FAR_AHEAD)}})
    delivery, names = planned(box, event)
    assert names == ["a"]
    assert set(delivery.progress) == {"a"}


def test_an_event_that_no_destination_wants_waits_at_no_cost(box: Outbox) -> None:
    register("other", event_type="other")
    delivery, names = planned(box, emit_one())
    assert names == []
    entry = delivery.progress[NO_DESTINATION]
    assert (entry.is_open, entry.attempts, entry.waits) == (True, 0, 1)


def test_a_destination_that_this_worker_lacks_waits_while_the_others_are_called(box: Outbox) -> None:
    register("here")
    event = emit_one()
    change(event, progress={"elsewhere": {"state": WAITING, "attempts": 2, "not_before": to_text(LONG_AGO)}})
    delivery, names = planned(box, event)
    assert names == ["here"]
    entry = delivery.progress["elsewhere"]
    assert (entry.is_open, entry.attempts) == (True, 2)
    assert entry.error == "'elsewhere' is not registered in this worker"
    assert entry.reason == NOT_REGISTERED


class TestEventsFromExpiredLeases:
    @pytest.mark.parametrize(("attempts", "sent"), [(4, ["a"]), (5, [])])
    def test_one_that_killed_its_workers_as_often_as_it_may_be_tried_is_not_sent(
        self, box: Outbox, attempts: int, sent: list[str]
    ) -> None:
        register("a")
        event = emit_one(max_attempts=5)
        claimed(box)
        expire_leases()
        change(event, attempts=attempts)
        _, names = planned(box, event)
        assert names == sent

    def test_its_end_says_what_happened(self, box: Outbox) -> None:
        register("a")
        event = emit_one(max_attempts=2)
        claimed(box)
        expire_leases()
        change(event, attempts=2)
        delivery, _ = planned(box, event)
        assert delivery.progress["a"].state == FAILED
        error = "the worker died, or lost its lease, during attempt 2; not sent again"
        assert delivery.progress["a"].error == error

    def test_destinations_that_have_it_keep_it(self, box: Outbox) -> None:
        register("a", "b")
        event = emit_one(max_attempts=2)
        claimed(box)
        expire_leases()
        change(event, attempts=2)
        change(event, progress={"a": {"state": DELIVERED, "attempts": 1}})
        delivery, _ = planned(box, event)
        assert [delivery.progress[name].state for name in ("a", "b")] == [DELIVERED, FAILED]

    def test_one_that_was_replayed_to_one_destination_fails_there_alone(self, box: Outbox) -> None:
        register("replayed to", "others")
        event = emit_one()
        change(event, attempts=5, progress={"replayed to": {}, OTHER_DESTINATIONS: {"state": DELIVERED}})
        claimed(box)
        expire_leases()
        delivery, names = planned(box, event)
        assert names == []
        states = {name: entry.state for name, entry in delivery.progress.items()}
        assert states == {"replayed to": FAILED, "others": DELIVERED, OTHER_DESTINATIONS: DELIVERED}

    def test_it_fails_though_nothing_here_handles_it(self, box: Outbox) -> None:
        register("other", event_type="other")
        event = emit_one(max_attempts=2)
        claimed(box)
        expire_leases()
        change(event, attempts=2)
        delivery, _ = planned(box, event)
        assert delivery.progress[NO_DESTINATION].state == FAILED

    @pytest.mark.parametrize(("attempts", "sent"), [(1, ["a"]), (2, [])])
    def test_one_with_a_single_attempt_that_was_lost_with_its_batch_is_tried_alone(
        self, box: Outbox, attempts: int, sent: list[str]
    ) -> None:
        register("a")
        event = emit_one(max_attempts=1)
        claimed(box)
        expire_leases()
        change(event, attempts=attempts)
        assert planned(box, event)[1] == sent

    def test_an_event_with_as_many_attempts_whose_lease_did_not_expire_is_sent(self, box: Outbox) -> None:
        register("a")
        event = emit_one(max_attempts=1)
        change(event, attempts=1)
        assert planned(box, event)[1] == ["a"]
