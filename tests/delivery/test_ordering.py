"""Order per key: at each destination, in the order of emission, through retries, crashes and several workers."""

from datetime import timedelta
from threading import Event as Gate
from typing import Any

import pytest

import outbox
from outbox import OutboxEvent
from outbox.core import Outbox
from outbox.destinations.outcome import Failed, Outcome, Retry
from outbox.events.event import Event
from outbox.operations.actions import RETRY, SKIP
from outbox.storage.models import DELIVERED, FAILED, PENDING, SENDING
from outbox.storage.waiting_events import unpark_all
from tests.operations.changing import change_all
from tests.support.controls import pause, resume
from tests.support.ordering import FAR, Pipeline, Receiver, crm, keyed, run, settle_first, waiting
from tests.support.table import another, at_work, becomes_true, change, emit, let_pass, passes, statements, stored

__all__ = ["crm"]


class TestOneKey:
    def test_a_refused_event_holds_back_the_later_ones_and_no_other_key(self, box: Outbox, crm: Receiver) -> None:
        crm.outcomes["2"] = Retry("not now")
        keyed("1", "2", "3", "4")
        keyed("a", "b", key="other")
        emit(2)
        run(box)
        assert crm.ids() == ["1"]
        assert crm.ids("other") == ["a", "b"]
        assert len(crm.ids("")) == 2
        assert waiting() == {"crm": ["3", "4"]}
        crm.outcomes.clear()
        let_pass(minutes=2)
        run(box)
        assert crm.ids() == ["1", "2", "3", "4"]
        assert waiting() == {}

    def test_events_emitted_while_one_is_retried_wait_too(self, box: Outbox, crm: Receiver) -> None:
        crm.outcomes["1"] = Retry("not now")
        keyed("1")
        run(box)
        keyed("2")
        run(box)
        assert crm.ids() == []
        assert waiting() == {"crm": ["2"]}

    def test_an_event_that_waits_costs_no_attempt_and_is_claimed_once(self, box: Outbox, crm: Receiver) -> None:
        crm.outcomes["1"] = Retry("not now", timedelta(0))
        _, second = keyed("1", "2", max_attempts=100)
        for _ in range(5):
            box.process_pending_events()
        row = stored(second)
        assert (row.status, row.attempts, row.order_state, row.next_attempt_at) == (PENDING, 0, "waits", FAR)
        assert crm.calls == {"1": 5}

    def test_each_is_written_once_when_parked_and_once_when_released(
        self, box: Outbox, crm: Receiver, database: Any
    ) -> None:
        crm.outcomes["0"] = Retry("not now", timedelta(0))
        first, *_ = keyed(*(str(number) for number in range(50)), max_attempts=100)
        run_times = 4
        with statements(database) as seen:
            for _ in range(run_times):
                box.process_pending_events()
        parked = [each for each in seen if each.startswith("UPDATE") and "= 'waits', lease_id" in each]
        assert len(parked) == 1
        change(first, next_attempt_at=first.created_at, progress=None)
        crm.outcomes.clear()
        with statements(database) as seen:
            run(box)
        assert crm.ids() == [str(number) for number in range(50)]
        assert not [each for each in seen if each.startswith("UPDATE") and "= 'waits', lease_id" in each]

    def test_one_that_goes_nowhere_now_holds_back_those_in_the_same_batch(self, box: Outbox, crm: Receiver) -> None:
        """Its progress can't be read, for example: it is tried again later."""
        first, _ = keyed("1", "2")
        change(first, progress={"crm": {"not_before": 7}})
        run(box)
        assert stored(first).status == PENDING
        assert crm.ids() == []
        assert waiting() == {"crm": ["2"]}

    def test_one_that_another_worker_has_and_that_can_not_be_read_holds_back_its_key_alone(
        self, box: Outbox, crm: Receiver
    ) -> None:
        first, _ = keyed("1", "2")
        keyed("a", "b", key="other")
        change(first, progress={"crm": {"not_before": 7}}, next_attempt_at=FAR)
        run(box)
        assert crm.got == [("other", "a"), ("other", "b")]
        assert waiting() == {"crm": ["2"]}

    def test_the_order_is_that_of_emission_whatever_the_due_times_are(self, box: Outbox, crm: Receiver) -> None:
        first, second, third = keyed("1", "2", "3")
        for event, moment in ((first, 3), (second, 2), (third, 1)):
            change(event, next_attempt_at=first.created_at - timedelta(seconds=10 - moment))
        for _ in range(20):
            if not box.process_pending_events(1)["processed"]:
                break
        assert crm.ids() == ["1", "2", "3"]

    def test_a_pipeline_gets_the_next_event_only_after_the_one_before_it(self, box: Outbox) -> None:
        receiver = Pipeline()
        outbox.add_destination(receiver)
        receiver.outcomes["2"] = Retry("not now")
        keyed("1", "2", "3", "4")
        keyed("a", "b", "c", key="other")
        run(box)
        assert receiver.ids() == ["1"]
        assert receiver.ids("other") == ["a", "b", "c"]
        assert receiver.calls["3"] == 0

    def test_a_call_that_raises_keeps_the_rest_in_order(self, box: Outbox) -> None:
        calls: list[str] = []

        @outbox.handler("*", name="crm")
        def handle(event: Event) -> None:
            calls.append(event.aggregate_id)
            if len(calls) == 2:
                raise ConnectionError("broken")

        keyed("1", "2", "3")
        run(box)
        assert calls == ["1", "2"]
        let_pass(minutes=2)
        run(box)
        assert calls == ["1", "2", "2", "3"]

    def test_max_age_does_not_count_the_time_behind_another(self, box: Outbox, crm: Receiver) -> None:
        """The second was tried before, and then waits for longer than OUTBOX_MAX_AGE_HOURS behind the first."""
        crm.outcomes |= {"1": Retry("not now"), "2": outbox.Unavailable("gone")}
        first, second = keyed("1", "2", max_attempts=1000)
        change(first, next_attempt_at=first.created_at + timedelta(hours=1), order_state=None)
        run(box)
        assert crm.calls == {"2": 1}
        change(first, order_state="holds", next_attempt_at=first.created_at)
        let_pass(hours=1)
        run(box)
        assert stored(second).order_state == "waits"
        let_pass(hours=100)
        crm.outcomes.pop("1")
        run(box)
        assert crm.ids() == ["1"]
        assert stored(second).status == PENDING

    def test_max_age_does_not_count_it_though_the_event_is_looked_at_meanwhile(
        self, box: Outbox, crm: Receiver
    ) -> None:
        """As when a new destination is recorded: whatever waits is claimed again, and waits on."""
        crm.outcomes |= {"1": Retry("not now", timedelta(days=30)), "2": outbox.Unavailable("gone")}
        first, second = keyed("1", "2", max_attempts=1000)
        change(first, next_attempt_at=first.created_at + timedelta(hours=1), order_state=None)
        run(box)
        change(first, order_state="holds", next_attempt_at=first.created_at)
        let_pass(hours=1)
        run(box)
        let_pass(hours=100)
        unpark_all(box.dialect)
        run(box)
        assert stored(second).order_state == "waits"
        crm.outcomes.pop("1")
        let_pass(days=30)
        run(box)
        assert (crm.ids(), crm.calls["2"]) == (["1"], 2)
        assert stored(second).status == PENDING


class TestDestinations:
    def test_each_keeps_its_own_order(self, box: Outbox, crm: Receiver) -> None:
        mail = Receiver("mail")
        outbox.add_destination(mail)
        crm.outcomes["1"] = Retry("not now")
        keyed("1", "2", "3")
        run(box)
        assert crm.ids() == []
        assert mail.ids() == ["1", "2", "3"]
        assert waiting() == {"crm": ["2", "3"]}
        crm.outcomes.clear()
        let_pass(minutes=2)
        run(box)
        assert crm.ids() == mail.ids() == ["1", "2", "3"]
        assert mail.calls == {"1": 1, "2": 1, "3": 1}

    def test_an_event_that_failed_at_one_and_waits_at_another_holds_back_the_later_ones_at_both(
        self, box: Outbox, crm: Receiver
    ) -> None:
        mail = Receiver("mail")
        outbox.add_destination(mail)
        crm.outcomes["1"] = Retry("not now")
        mail.outcomes["2"] = Failed("no such address")
        keyed("1", "2", "3")
        run(box)
        keyed("4")
        run(box)
        assert mail.ids() == ["1"]
        crm.outcomes.clear()
        let_pass(minutes=2)
        run(box)
        assert (crm.ids(), mail.ids()) == (["1", "2", "3", "4"], ["1"])
        assert waiting() == {"mail": ["3", "4"]}

    def test_one_may_decline(self, box: Outbox) -> None:
        receiver = Receiver()
        receiver.ordered = False
        outbox.add_destination(receiver)
        receiver.outcomes["1"] = Retry("not now")
        keyed("1", "2")
        run(box)
        assert receiver.ids() == ["2"]

    def test_events_that_it_does_not_want_hold_nothing_back(self, box: Outbox) -> None:
        crm, audit = Receiver("crm", "order.placed"), Receiver("audit", "order.paid")
        outbox.add_destination(crm)
        outbox.add_destination(audit)
        audit.outcomes["1"] = Retry("not now")
        outbox.emit("Order", "1", "order.paid", ordering_key="k")
        keyed("2")
        run(box)
        assert crm.ids() == ["2"]

    def test_an_event_that_none_wants_does_not_block_its_key(self, box: Outbox) -> None:
        crm = Receiver("crm", "order.placed")
        outbox.add_destination(crm)
        outbox.emit("Order", "1", "order.unknown", ordering_key="k")
        keyed("2")
        run(box)
        assert crm.ids() == ["2"]


class TestFailing:
    def test_a_failed_event_blocks_its_key_until_an_operator_retries_it(self, box: Outbox, crm: Receiver) -> None:
        crm.outcomes["1"] = Failed("no such customer")
        first, second = keyed("1", "2")
        run(box)
        assert (stored(first).status, stored(second).status) == (FAILED, PENDING)
        assert waiting() == {"crm": ["2"]}
        crm.outcomes.clear()
        assert box.retry_failed_events() == 1
        run(box)
        assert crm.ids() == ["1", "2"]

    def test_a_destination_may_skip_it(self, box: Outbox, crm: Receiver) -> None:
        crm.on_failed = "skip"
        crm.outcomes["1"] = Failed("no such customer")
        keyed("1", "2")
        run(box)
        assert crm.ids() == ["2"]

    @pytest.mark.parametrize("kind", [Receiver, Pipeline])
    def test_it_is_skipped_when_that_is_written_and_not_before(self, box: Outbox, kind: type[Receiver]) -> None:
        """A worker that died in between would leave it to another one, which tries it again, after the later ones."""
        found: list[str] = []

        class Receiving(kind):  # type: ignore[valid-type, misc]
            def outcome_of(self, event: Event) -> Outcome:
                found.append(stored(first).status)
                return Failed("never") if event.id == first.id else super().outcome_of(event)

        crm = Receiving()
        crm.on_failed = "skip"
        outbox.add_destination(crm)
        first, *_ = keyed("1", "2", "3")
        run(box)
        assert crm.ids() == ["2", "3"]
        assert found == [SENDING, FAILED, FAILED]

    def test_what_waited_behind_it_goes_on_after_a_skip(self, box: Outbox, crm: Receiver) -> None:
        crm.on_failed = "skip"
        crm.outcomes["1"] = Retry("not now")
        keyed("1", "2", "3", max_attempts=2)
        run(box)
        assert waiting() == {"crm": ["2", "3"]}
        let_pass(minutes=2)
        run(box)
        assert crm.ids() == ["2", "3"]

    def test_a_skip_where_it_has_failed_changes_nothing_where_it_is_still_tried(
        self, box: Outbox, crm: Receiver
    ) -> None:
        mail = Receiver("mail")
        outbox.add_destination(mail)
        crm.outcomes["1"] = Failed("no such customer")
        mail.outcomes["1"] = Retry("not now")
        first, *_ = keyed("1", "2", "3")
        run(box)
        assert waiting() == {"crm": ["2", "3"], "mail": ["2", "3"]}
        assert change_all(box, SKIP) == 1
        run(box)
        assert (crm.ids(), mail.ids()) == (["2", "3"], [])
        assert change_all(box, SKIP) == 0
        mail.outcomes.clear()
        let_pass(minutes=2)
        run(box)
        assert (crm.ids(), mail.ids()) == (["2", "3"], ["1", "2", "3"])
        assert (stored(first).status, stored(first).order_state) == (FAILED, None)
        assert waiting() == {}

    def test_a_skipped_event_that_an_operator_retries_holds_back_its_key_again(
        self, box: Outbox, crm: Receiver
    ) -> None:
        mail = Receiver("mail")
        outbox.add_destination(mail)
        crm.outcomes["1"] = Failed("no such customer")
        mail.outcomes["1"] = Retry("not now")
        first, *_ = keyed("1", "2", max_attempts=2)
        run(box)
        change_all(box, SKIP)
        let_pass(minutes=2)
        run(box)
        assert (stored(first).status, crm.ids(), mail.ids()) == (FAILED, ["2"], [])
        change_all(box, RETRY)
        keyed("3")
        run(box)
        assert waiting() == {"crm": ["3"], "mail": ["2", "3"]}
        crm.outcomes.clear()
        mail.outcomes.clear()
        let_pass(minutes=2)
        run(box)
        assert (crm.ids(), mail.ids()) == (["2"], ["1", "2", "3"])
        change_all(box, RETRY)
        run(box)
        assert (crm.ids(), mail.ids()) == (["2", "1", "3"], ["1", "2", "3"])

    def test_a_skip_leaves_an_event_alone_that_a_worker_is_delivering(self, box: Outbox, crm: Receiver) -> None:
        mail = Receiver("mail")
        outbox.add_destination(mail)
        crm.outcomes["1"] = Failed("no such customer")
        mail.outcomes["1"] = Retry("not now")
        first, _ = keyed("1", "2")
        run(box)
        change(first, lease_until=FAR, lease_id=first.id)
        assert change_all(box, SKIP) == 0

    def test_clean_up_keeps_a_failed_event_while_others_wait_behind_it(self, box: Outbox, crm: Receiver) -> None:
        crm.outcomes["1"] = Failed("no such customer")
        keyed("1", "2")
        outbox.emit("Order", "x", "order.placed", ordering_key="alone")
        crm.outcomes["x"] = Failed("no such customer")
        run(box)
        let_pass(seconds=1)
        assert box.cleanup_delivered_events(0)["deleted"] == 1
        assert {event.aggregate_id for event in OutboxEvent.select()} == {"1", "2"}

    def test_clean_up_keeps_a_failed_event_while_no_worker_has_claimed_the_later_ones(
        self, box: Outbox, crm: Receiver
    ) -> None:
        crm.outcomes |= {"1": Failed("no such customer"), "a": Failed("no such customer")}
        keyed("1")
        keyed("a", key="other")
        run(box)
        keyed("2")
        keyed("b", key="other", deliver_after=timedelta(hours=1))
        let_pass(seconds=1)
        assert box.cleanup_delivered_events(0)["deleted"] == 0
        run(box)
        assert crm.ids() == []


class TestSeveralWorkers:
    def test_an_event_waits_while_another_worker_has_the_one_before_it(self, box: Outbox) -> None:
        started, gate, got = Gate(), Gate(), []

        @outbox.handler("*", name="crm")
        def handle(event: Event) -> None:
            if event.aggregate_id == "1":
                started.set()
                passes(gate)
            got.append(event.aggregate_id)

        keyed("1", "2", "3")
        other = another(box)
        with at_work(box, gate, batch_size=1) as worker:
            passes(started)
            run(other)
            assert got == []
            assert waiting() == {"crm": ["2", "3"]}
            gate.set()
            worker.result()
            run(other)
        assert got == ["1", "2", "3"]

    def test_an_event_that_is_parked_after_the_one_before_it_has_ended_is_released_at_once(
        self, box: Outbox, crm: Receiver
    ) -> None:
        """Its worker looked before the other one settled, and parks it afterwards."""
        keyed("1", "2")
        other = another(box)
        box.process_pending_events(0 + 1)
        # As if the first were still being delivered when the second is planned.
        first = OutboxEvent.get(aggregate_id="1")
        change(first, delivered_at=None, next_attempt_at=first.created_at, lease_until=FAR)
        seen = box.dialect.statements.parked
        settle_first(other, first, before=seen)
        run(other)
        assert crm.ids() == ["1", "2"]

    def test_none_overtakes_an_event_that_waits_though_nothing_holds_it_back_any_more(
        self, box: Outbox, crm: Receiver
    ) -> None:
        """The worker that settled the first died before it released the second; then a third is emitted."""
        crm.outcomes["1"] = Retry("not now")
        first, second = keyed("1", "2")
        run(box)
        change(first, delivered_at=first.created_at, next_attempt_at=None, status=DELIVERED)
        crm.outcomes.clear()
        keyed("3")
        assert stored(second).order_state == "waits"
        box.process_pending_events()
        assert crm.ids() == []
        run(box)
        assert crm.ids() == ["2", "3"]


class TestOverlooked:
    def test_events_that_nothing_released_are_found_by_the_next_drain(self, box: Outbox, crm: Receiver) -> None:
        crm.outcomes["1"] = Retry("not now")
        first, _ = keyed("1", "2")
        run(box)
        first.delete_instance()
        box.drain()
        assert crm.ids() == ["2"]

    def test_they_are_found_though_no_worker_has_their_destination_any_more(self, box: Outbox) -> None:
        crm = Receiver()
        outbox.add_destination(crm)
        crm.outcomes["1"] = Retry("not now")
        first, second = keyed("1", "2")
        run(box)
        first.delete_instance()
        other = Outbox(box.settings, database=box.database)
        other.registry.add(Receiver("mail"))
        run(other)
        assert stored(second).status == DELIVERED
        assert waiting() == {}

    def test_many_keys_are_read_piece_by_piece(
        self, box: Outbox, crm: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("outbox.delivery.followers.PAIRS_READ", 2)
        for number in range(7):
            crm.outcomes[f"{number}-1"] = Retry("not now")
            keyed(f"{number}-1", f"{number}-2", key=f"k{number}")
        run(box)
        assert len(waiting()["crm"]) == 7
        OutboxEvent.delete().where(OutboxEvent.aggregate_id.endswith("-1")).execute()
        run(box)
        assert len(crm.got) == 7


class TestScheduled:
    def test_a_scheduled_event_lets_later_ones_pass_until_it_is_due(self, box: Outbox, crm: Receiver) -> None:
        keyed("1", deliver_after=timedelta(hours=1))
        keyed("2")
        run(box)
        assert crm.ids() == ["2"]
        crm.outcomes["1"] = Retry("not now")
        let_pass(hours=2)
        keyed("3")
        run(box)
        assert crm.ids() == ["2"]

    def test_with_hold_later_ones_wait_for_it(self, box: Outbox, crm: Receiver) -> None:
        keyed("1", deliver_after=timedelta(hours=1), hold=True)
        keyed("2")
        run(box)
        assert crm.ids() == []
        let_pass(minutes=61)
        run(box)
        assert crm.ids() == ["1", "2"]

    def test_hold_needs_a_key_and_a_time(self, box: Outbox) -> None:
        with pytest.raises(outbox.InvalidEvent, match="hold=True"):
            keyed("1", hold=True)
        with pytest.raises(outbox.InvalidEvent, match="hold=True"):
            outbox.emit("Order", "1", "order.placed", hold=True, deliver_after=timedelta(hours=1))


class TestPause:
    def test_an_event_that_was_put_off_for_a_pause_and_waits_now_is_not_due_before_it_is_released(
        self, box: Outbox, crm: Receiver
    ) -> None:
        """Another destination is paused, so that workers look for events that were put off for a pause."""
        first, *_ = keyed("1", deliver_after=timedelta(hours=1))
        (second,) = keyed("2")
        pause("crm")
        run(box)
        pause("mail")
        crm.outcomes["1"] = Retry("not now")
        let_pass(hours=2)
        resume("crm")
        box.process_pending_events()
        assert crm.calls == {"1": 1}
        assert (stored(second).order_state, stored(second).next_attempt_at) == ("waits", FAR)
        crm.outcomes.clear()
        change(first, next_attempt_at=first.created_at, progress=None)
        run(box)
        assert crm.ids() == ["1", "2"]


class TestCircuitBreaker:
    def test_the_first_event_of_a_key_is_put_off_and_the_others_wait_behind_it(self, box: Outbox) -> None:
        crm = Receiver()
        outbox.add_destination(crm)
        for number in range(20):
            crm.outcomes[f"x{number}"] = outbox.Unavailable("gone")
            outbox.emit("Order", f"x{number}", "order.placed")
        run(box)
        assert sum(crm.calls.values()) < 20, "the breaker is open"
        keyed("1", "2", "3")
        run(box)
        assert crm.ids() == []
        assert waiting() == {"crm": ["2", "3"]}
        crm.outcomes.clear()
        let_pass(hours=1)
        box.throttles = type(box.throttles)(box.settings)
        becomes_true(lambda: delivered_in_order(box, crm))


def delivered_in_order(box: Outbox, crm: Receiver) -> bool:
    run(box)
    let_pass(minutes=20)
    assert crm.ids() == ["1", "2", "3"][: len(crm.ids())]
    return len(crm.ids()) == 3


class TestEmit:
    def test_ordered_takes_the_aggregate_as_the_key(self, box: Outbox) -> None:
        assert outbox.emit("Order", 7, "order.placed", ordered=True).ordering_key == "Order:7"
        assert outbox.emit("Order", 8, "order.placed", ordering_key="k", ordered=True).ordering_key == "k"
        assert outbox.emit("Order", 9, "order.placed").ordering_key is None

    @pytest.mark.parametrize("value", ["Strict", 2, None, "yes"])
    def test_anything_else_is_refused(self, box: Outbox, value: Any) -> None:
        with pytest.raises(outbox.InvalidEvent, match="ordered must be"):
            outbox.emit("Order", 7, "order.placed", ordered=value)

    def test_many_at_once_are_delivered_in_the_callers_order(self, box: Outbox, crm: Receiver) -> None:
        ids = ["9", "3", "7", "1", "8"]
        outbox.emit_many(
            [
                {"aggregate_type": "Order", "aggregate_id": id, "event_type": "order.placed", "ordering_key": "k"}
                for id in ids
            ]
        )
        while box.process_pending_events(2)["processed"]:
            pass
        assert crm.ids() == ids

    def test_strict_needs_a_transaction(self, box: Outbox) -> None:
        with pytest.raises(outbox.TransactionRequired, match="strict"):
            outbox.emit("Order", 7, "order.placed", ordered="strict")
