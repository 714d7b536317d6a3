"""Order per key where two things meet: an event that waits, and a change of it, of its destinations or of its row."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Event as Gate
from typing import Any

import psycopg
import pytest

import outbox
from outbox import OutboxEvent
from outbox.core import Outbox
from outbox.destinations.outcome import Failed, Retry
from outbox.events.event import Event
from outbox.storage.models import FAILED, HOLDS, PENDING, WAITS
from outbox.storage.timestamp import LATEST
from outbox.storage.waiting_events import HOLDERS_READ, add_waiting, read_earlier
from tests.support.ordering import FAR, Receiver, crm, keyed, run, settle_first, waiting
from tests.support.table import (
    another,
    at_work,
    becomes_true,
    change,
    claimed,
    let_pass,
    on_postgres,
    passes,
    stored,
)

__all__ = ["crm"]

# Not due yet, and not parked either.
SOON = datetime.now(UTC) + timedelta(days=1)


def worker(box: Outbox, *receivers: Any) -> Outbox:
    """A worker with these destinations, which it has recorded."""
    other = Outbox(box.settings, database=box.database)
    for receiver in receivers:
        other.registry.add(receiver)
    other.become_worker()
    other.recorder.keep_current()
    return other


class TestTheNextEvent:
    def test_is_due_as_soon_as_the_one_before_it_is_settled(self, box: Outbox, crm: Receiver) -> None:
        crm.outcomes["1"] = Retry("not now")
        keyed("1", "2")
        run(box)
        crm.outcomes.clear()
        let_pass(minutes=2)
        assert box.process_pending_events() == {"processed": 1, "remaining": 1}

    def test_is_due_if_the_one_before_it_ends_while_it_is_parked(self, box: Outbox, crm: Receiver) -> None:
        crm.outcomes["1"] = Retry("not now")
        first, second = keyed("1", "2")
        settle_first(box, first, before=box.dialect.statements.parked)
        change(first, lease_until=FAR, lease_id=first.id)
        box.process_pending_events()
        assert stored(second).next_attempt_at < LATEST


class TestManyEventsInFront:
    """More than one look reads: they are delivered at both destinations, and a third one has yet to take them."""

    def in_front(self, *ids: str) -> None:
        done = {"state": "delivered"}
        for event in keyed(*ids):
            change(event, progress={"crm": done, "mail": done, "late": {"state": "waiting"}}, next_attempt_at=SOON)

    def before_the_second_look(self, monkeypatch: pytest.MonkeyPatch, step: Callable[[], None]) -> None:
        looks: list[object] = []

        def look(*arguments: Any, **options: Any) -> Any:
            looks.append(options)
            if len(looks) == 2:
                step()
            return read_earlier(*arguments, **options)

        monkeypatch.setattr("outbox.delivery.ordering.read_earlier", look)

    def wait_at(self, event: OutboxEvent, *names: str) -> None:
        """As a worker has it that parks the event, or releases it at the other destinations and claims it."""
        if names:
            change(event, order_state=WAITS, next_attempt_at=LATEST, lease_id=None, lease_until=None)
        else:
            due = event.created_at
            change(event, order_state=HOLDS, next_attempt_at=due, lease_id=event.id, lease_until=FAR)
        dialect = outbox.current().dialect
        dialect.run("DELETE FROM outbox_waiting")
        add_waiting(dialect, [(str(dialect.id(event.id)), name) for name in names])

    @pytest.fixture
    def both(self, box: Outbox) -> tuple[Receiver, Receiver]:
        crm, mail = Receiver("crm"), Receiver("mail")
        outbox.add_destination(crm)
        outbox.add_destination(mail)
        return crm, mail

    def test_are_all_looked_at(self, box: Outbox, both: tuple[Receiver, Receiver]) -> None:
        self.in_front(*(str(number) for number in range(25)))
        (one,) = keyed("one")
        change(one, progress={"crm": {"state": "waiting"}, "mail": {"state": "delivered"}}, next_attempt_at=SOON)
        keyed("two")
        run(box)
        assert [each.ids() for each in both] == [[], ["two"]]
        assert waiting() == {"crm": ["two"]}

    def test_one_that_is_parked_between_two_reads_holds_back_the_later_ones(
        self, box: Outbox, both: tuple[Receiver, Receiver], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.in_front(*(str(number) for number in range(HOLDERS_READ)))
        (one,) = keyed("one")
        self.wait_at(one)
        keyed("two")
        self.before_the_second_look(monkeypatch, lambda: self.wait_at(one, "crm", "mail"))
        box.process_pending_events(1)
        assert [each.ids() for each in both] == [[], []]

    def test_one_that_is_released_between_two_reads_holds_back_the_later_ones(
        self, box: Outbox, both: tuple[Receiver, Receiver], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (one,) = keyed("one")
        change(one, progress={"crm": {"state": "delivered"}, "mail": {"state": "waiting"}})
        self.wait_at(one, "mail")
        self.in_front(*(str(number) for number in range(HOLDERS_READ)))
        keyed("two")
        self.before_the_second_look(monkeypatch, lambda: self.wait_at(one))
        box.process_pending_events(1)
        assert [each.ids() for each in both] == [["two"], []]


class TestAnEventThatIsReplacedWhileItWaits:
    def test_is_not_due_before_its_new_time(self, box: Outbox, crm: Receiver) -> None:
        crm.outcomes["1"] = Retry("not now")
        keyed("1", "2")
        run(box)
        assert waiting() == {"crm": ["2"]}
        keyed("2", deliver_after=timedelta(hours=1), on_duplicate="replace")
        crm.outcomes.clear()
        let_pass(minutes=2)
        run(box)
        assert crm.ids() == ["1"]
        let_pass(hours=1)
        run(box)
        assert crm.ids() == ["1", "2"]

    def test_leaves_nothing_behind_that_later_events_wait_for(self, box: Outbox, crm: Receiver) -> None:
        crm.outcomes["1"] = Retry("not now")
        keyed("1", "2", "3")
        run(box)
        outbox.emit("Order", "2", "order.placed", ordering_key="another", on_duplicate="replace")
        crm.outcomes.clear()
        let_pass(minutes=2)
        run(box)
        assert (crm.ids(), crm.ids("another"), waiting()) == (["1", "3"], ["2"], {})


class TestADestinationThatIsNewWhileEventsWait:
    def test_gets_them_in_order(self, box: Outbox) -> None:
        crm, mail = Receiver("crm"), Receiver("mail")
        before = worker(box, crm)
        crm.outcomes["1"] = Retry("not now", timedelta(0))
        keyed("1", "2", max_attempts=100)
        before.process_pending_events()
        after = worker(box, crm, mail)
        keyed("3")
        for _ in range(3):
            after.process_pending_events()
        assert mail.ids() == ["1", "2", "3"]
        assert waiting() == {"crm": ["2", "3"]}

    @on_postgres  # SQLite has one writer: no worker records a destination while another one parks an event
    def test_gets_one_that_was_parked_before_it_was_known(self, box: Outbox) -> None:
        crm, mail = Receiver("crm"), Receiver("mail")
        before = worker(box, crm)
        crm.outcomes["1"] = Retry("not now", timedelta(hours=1))
        keyed("1")
        before.process_pending_events()
        keyed("2")

        with ThreadPoolExecutor(1) as executor:

            def record(query: Any) -> None:
                """Record mail just before the other worker parks the event."""
                if query.sql == box.dialect.statements.parked:
                    box.database.query_hooks.remove(record)
                    executor.submit(worker, box, crm, mail).result()

            box.database.query_hooks.append(record)
            before.process_pending_events()
        assert OutboxEvent.get(aggregate_id="2").next_attempt_at < LATEST

    def test_with_fewer_types_holds_nothing_back_that_it_no_longer_wants(self, box: Outbox) -> None:
        crm = Receiver("crm")
        before = worker(box, crm)
        crm.outcomes["1"] = Failed("never")
        keyed("1", "2")
        run(before)
        narrow, mail = Receiver("crm", "order.paid"), Receiver("mail")
        mail.on_failed = "skip"  # the first event has failed, and mail never had it
        box.dialect.run("UPDATE outbox_destination SET seen_at = '2020-01-01 00:00:00.000000+00:00'")
        after = worker(box, narrow, mail)
        run(after)
        assert (narrow.ids(), mail.ids()) == ([], ["2"])


class TestWorkersWithDifferentDestinations:
    def test_park_an_event_that_waits_at_all_of_them_though_none_has_them_all(self, box: Outbox) -> None:
        crm, mail = Receiver("crm"), Receiver("mail")
        workers = worker(box, crm), worker(box, mail)
        crm.outcomes["1"] = mail.outcomes["1"] = Failed("never")
        first, second = keyed("1", "2")

        def all_run(times: int) -> None:
            for each in workers * times:
                let_pass(minutes=2)  # so that it gets what the other one has put off
                run(each)

        all_run(3)
        assert (stored(first).status, stored(second).next_attempt_at) == (FAILED, LATEST)
        assert waiting() == {"crm": ["2"], "mail": ["2"]}
        crm.outcomes.clear()
        mail.outcomes.clear()
        box.retry_failed_events()
        all_run(3)
        assert (crm.ids(), mail.ids(), waiting()) == (["1", "2"], ["1", "2"], {})

    def test_deliver_an_event_at_one_while_it_waits_at_the_other(self, box: Outbox) -> None:
        crm, mail = Receiver("crm"), Receiver("mail")
        of_crm, of_mail = worker(box, crm), worker(box, mail)
        crm.outcomes["1"] = Failed("never")
        keyed("1", "2")
        run(of_crm)
        let_pass(minutes=2)
        run(of_mail)
        assert (mail.ids(), OutboxEvent.get(aggregate_id="2").next_attempt_at) == (["1", "2"], LATEST)


class TestADestinationThatIsReplacedWhileEventsWait:
    def test_by_one_that_had_the_event_as_well(self, box: Outbox) -> None:
        old, new = Receiver("old"), Receiver("new")
        before = worker(box, old, new)
        new.outcomes["1"] = Retry("not now")
        keyed("1")
        run(before)
        successor = Receiver("new")
        successor.replaces = ("old",)  # type: ignore[attr-defined]
        after = worker(box, successor)
        keyed("2")
        run(after)
        assert successor.ids() == []
        let_pass(minutes=10)
        run(after)
        assert successor.ids() == ["1", "2"]

    def test_takes_over_what_failed(self, box: Outbox) -> None:
        old, new = Receiver("old"), Receiver("new")
        before = worker(box, old)
        old.outcomes["1"] = Failed("never")
        new.on_failed = "skip"
        new.replaces = ("old",)  # type: ignore[attr-defined]
        keyed("1", "2")
        run(before)
        assert waiting() == {"old": ["2"]}
        # The first is pending at another destination, so that it has not failed as a whole.
        first = OutboxEvent.get(aggregate_id="1")
        change(first, next_attempt_at=FAR, status=PENDING)
        after = worker(box, new)
        run(after)
        assert new.ids() == ["2"]

    def test_all_of_them_go_on_at_once_however_many_they_are(self, box: Outbox) -> None:
        old = Receiver("old")
        before = worker(box, old)
        old.outcomes["0"] = Failed("never")
        keyed(*map(str, range(400)))
        run(before)
        new = Receiver("new")
        new.replaces = ("old",)  # type: ignore[attr-defined]
        after = worker(box, new)
        after.retry_failed_events()
        after.drain()
        assert new.ids() == [str(number) for number in range(400)]
        assert waiting() == {}

    def test_nothing_waits_under_the_old_name_any_more(self, box: Outbox) -> None:
        old, new = Receiver("old"), Receiver("new")
        before = worker(box, old)
        old.outcomes["1"] = Failed("never")
        keyed("1", "2")
        run(before)
        assert waiting() == {"old": ["2"]}
        new.replaces = ("old",)  # type: ignore[attr-defined]
        worker(box, new)
        assert waiting() == {}
        assert OutboxEvent.get(aggregate_id="2").next_attempt_at < LATEST

    def test_that_is_retired_lets_all_of_them_end(self, box: Outbox) -> None:
        old, mail = Receiver("old"), Receiver("mail")
        before = worker(box, old, mail)
        old.outcomes["0"] = Failed("never")
        keyed(*map(str, range(400)))
        run(before)
        after = Outbox(box.settings, database=box.database)
        after.registry.add(mail)
        after.registry.retire("old")
        after.become_worker()
        after.drain()
        assert OutboxEvent.select().where(OutboxEvent.status == PENDING).count() == 0
        assert waiting() == {}


class TestAnEventThatCannotBePlanned:
    def test_holds_its_key_back_when_it_has_failed(self, box: Outbox, crm: Receiver) -> None:
        first, _ = keyed("1", "2", max_attempts=1)
        change(first, progress={"crm": None})
        run(box)
        assert stored(first).status == "failed"
        assert crm.ids() == []
        assert waiting() == {"crm": ["2"]}

    def test_stops_no_other_key_while_another_worker_has_it(self, box: Outbox, crm: Receiver) -> None:
        first, _ = keyed("1", "2")
        keyed("a", key="other")
        change(first, progress={"crm": None}, lease_until=FAR, lease_id=first.id)
        run(box)
        assert (crm.ids(), crm.ids("other")) == ([], ["a"])


class TestASlowDestination:
    @pytest.mark.usefixtures("usual_slices")
    def test_holds_nothing_back_at_another_one(self, box: Outbox, crm: Receiver) -> None:
        """The first event is still at the slow one when another worker has the second."""
        started, gate, slow = Gate(), Gate(), []

        @outbox.handler("*", name="slow")
        def wait(event: Event) -> None:
            started.set()
            passes(gate)
            slow.append(event.aggregate_id)

        keyed("1")
        other = another(box)
        with at_work(box, gate) as working:
            passes(started)
            keyed("2", "3")
            becomes_true(lambda: other.process_pending_events()["remaining"] == 0 and crm.ids() == ["1", "2", "3"])
            assert waiting()["slow"] == ["2", "3"]
            gate.set()
            working.result()
            run(other)
        assert slow == ["1", "2", "3"]
        assert crm.calls == {"1": 1, "2": 1, "3": 1}
        assert waiting() == {}


class TestTwoTransactions:
    @on_postgres
    def test_releasing_never_waits_for_a_worker_that_parks_an_event(self, box: Outbox, url: str) -> None:
        """The event waits already, since it was claimed for a retry at another destination."""
        _, second = keyed("1", "2")
        batch = claimed(box)
        statements, dialect = box.dialect.statements, box.dialect
        dialect.run(
            "INSERT INTO outbox_waiting SELECT 'k', 'crm', seq, id, now() FROM outbox_event WHERE id = %s", (second.id,)
        )
        pair = ("{k}", "{crm}", "{10}")
        with psycopg.connect(url) as settling, psycopg.connect(url) as releasing:
            settling.execute(statements.parked, (dialect.row_ids([str(second.id)]), batch.lease_id))
            releasing.execute("SET statement_timeout = '5s'")
            assert releasing.execute(statements.release, (*pair, 10)).fetchone() == (0, 0)
            settling.execute(statements.wait, (dialect.row_ids([str(second.id)]), "{crm}"))
            settling.commit()
            releasing.commit()
            assert releasing.execute(statements.release, (*pair, 10)).fetchone() == (1, 1)
        assert stored(second).order_state == "holds"
