"""Delivered means that every destination of the deployment that wants the type has it, whichever worker claimed it."""

import peewee
import pytest

import outbox
from outbox.admin import queries
from outbox.core import Outbox
from outbox.delivery.claim import claim
from outbox.delivery.dispatch import dispatch
from outbox.delivery.settle import settle
from outbox.destinations.recorded_destinations import read_recorded
from outbox.destinations.registry import Registry
from outbox.storage.models import DELIVERED, FAILED, PENDING, OutboxEvent
from outbox.storage.progress import RETIRED
from tests.conftest import Configure
from tests.support.outbox_parts import waiting_for_handlers
from tests.support.table import emit, emit_one, let_pass, other_worker, statements, statuses, stored


def worker(box: Outbox, *names: str, calls: list[str] | None = None) -> Outbox:
    """A worker with these destinations for orders, which has just been started."""
    registry = Registry()
    for name in names:
        registry.handler("order.*", name=name)(lambda _, name=name: None if calls is None else calls.append(name))
    made = waiting_for_handlers(Outbox(box.settings, database=box.database, registry=registry))
    made.is_worker = True  # some tests register more
    return made


def replacing(box: Outbox, name: str, old: str, calls: list[str]) -> Outbox:
    made = worker(box)
    made.registry.handler("order.*", name=name, replaces=old)(lambda _: calls.append(name))
    return made


class TestAWorkerThatLacksADestination:
    def test_never_ends_the_event_for_the_others(self, box: Outbox) -> None:
        calls: list[str] = []
        full, poor = worker(box, "mailer", "crm", "bus", calls=calls), worker(box, "mailer-v2", calls=calls)
        full.drain()
        poor.drain()
        events = emit(20)
        poor.drain()
        assert statuses() == {PENDING: 20}
        let_pass(minutes=2)
        full.drain()
        assert statuses() == {DELIVERED: 20}
        assert sorted(set(calls)) == ["bus", "crm", "mailer", "mailer-v2"]
        assert len(calls) == 80
        assert queries.delivered_to(box.dialect, stored(events[0])) == ("bus", "crm", "mailer", "mailer-v2")

    def test_costs_the_event_no_attempt_and_no_age(self, box: Outbox) -> None:
        worker(box, "crm").drain()
        poor = worker(box, "mailer")
        poor.drain()
        event = emit_one(max_attempts=1)
        for _ in range(10):
            poor.drain()
            let_pass(hours=24)
        row = stored(event)
        assert (row.status, row.attempts) == (PENDING, 0)
        assert row.error_message == "crm: waits for a worker that has this destination"
        assert row.progress["crm"].keys() == {"state", "absences", "not_before", "error"}

    def test_logs_what_to_do_if_the_destination_was_renamed_or_removed(
        self, box: Outbox, caplog: pytest.LogCaptureFixture
    ) -> None:
        worker(box, "crm").drain()
        poor = worker(box, "mailer")
        poor.drain()
        emit_one()
        poor.drain()
        assert (
            "If crm was renamed, register its successor with replaces='crm'; if it was removed, "
            "run `outbox retire crm`." in caplog.text
        )

    def waits(self, box: Outbox, poor: Outbox) -> list[float]:
        """Return for how long an event is put off each time that a worker claims it that lacks a destination."""
        event = emit_one()
        found = []
        for _ in range(8):
            poor.drain()
            row = stored(event)
            found.append((row.next_attempt_at - row.updated_at).total_seconds())
            let_pass(minutes=2)
        return found

    def test_puts_the_event_off_for_some_seconds_while_a_running_worker_has_it(self, box: Outbox) -> None:
        worker(box, "crm").drain()
        waits = self.waits(box, worker(box, "mailer"))
        assert 1 < waits[0] < 4
        assert max(waits) < 14

    def test_puts_the_event_off_for_longer_and_longer_while_no_running_worker_has_it(self, box: Outbox) -> None:
        crm = worker(box, "crm")
        crm.drain()
        box.database.execute_sql("UPDATE outbox_destination SET seen_at = '2020-01-01 00:00:00.000000+00:00'")
        poor = worker(box, "mailer")
        waits = self.waits(box, poor)
        assert 1 < waits[0] < 4
        assert 30 < waits[-1] < 76
        crm.recorder.record(starting=True)
        assert max(self.waits(box, poor)) < 14

    def test_learns_of_a_destination_that_was_recorded_while_it_ran(self, box: Outbox) -> None:
        poor = worker(box, "mailer")
        emit_one()
        poor.drain()
        assert statuses() == {DELIVERED: 1}
        worker(box, "crm").drain()
        emit_one()
        poor.drain()
        assert statuses() == {DELIVERED: 1, PENDING: 1}

    def test_also_if_its_destination_of_that_name_wants_other_types(self, box: Outbox) -> None:
        """An older version, while a newer one has widened what the destination wants."""
        old = other_worker(box, mailer="order.placed")
        other_worker(box, mailer="order.*")
        emit_one("order.paid")
        old.drain()
        assert statuses() == {PENDING: 1}

    @pytest.mark.parametrize("unhandled", ["deliver", "fail"])
    def test_does_not_treat_the_type_as_unhandled(self, configure: Configure, unhandled: str) -> None:
        box = configure(unhandled=unhandled)
        other_worker(box, crm="order.*")
        outbox.handler("user.*", name="mailer")(lambda _: None)
        emit_one()
        box.process_pending_events()
        assert statuses() == {PENDING: 1}

    def test_does_not_ignore_the_type_either(self, box: Outbox) -> None:
        other_worker(box, crm="order.*")
        outbox.ignore("order.*")
        emit_one()
        box.process_pending_events()
        assert statuses() == {PENDING: 1}

    def test_even_with_nothing_registered_at_all(self, box: Outbox) -> None:
        other_worker(box, crm="order.*")
        emit_one()
        box.process_pending_events()
        assert statuses() == {PENDING: 1}


class TestRecording:
    def test_comes_before_the_first_claim_whatever_is_published(self, configure: Configure) -> None:
        box = configure(publish_seconds=0)
        assert worker(box, "mailer").drain() == 0
        assert queries.destination_names(box.dialect, box.registry) == ["mailer"]

    def test_is_for_workers_alone(self, box: Outbox) -> None:
        outbox.handler("order.*", name="here")(lambda _: None)
        emit_one()
        box.process_pending_events()
        box.drain()
        other = Outbox(box.settings, database=box.database)
        with box.dialect.connection():
            assert queries.destination_names(other.dialect, other.registry) == []
        assert statuses() == {DELIVERED: 1}

    def test_that_fails_keeps_a_worker_from_claiming(self, box: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
        made = worker(box, "mailer")
        emit_one()

        def fail(*_: object, **__: object) -> None:
            raise peewee.OperationalError("gone")

        with monkeypatch.context() as patch:
            patch.setattr(made.recorder, "record", fail)
            with pytest.raises(peewee.OperationalError, match="gone"):
                made.drain()
        assert statuses() == {PENDING: 1}
        assert made.drain() == 1

    def test_takes_no_statement_once_it_is_done(self, box: Outbox) -> None:
        made = worker(box, "mailer")
        made.drain()
        with statements(box.database) as seen:
            made.drain()
        assert [statement for statement in seen if "outbox_destination" in statement] == []

    def test_counts_for_a_batch_that_comes_from_two_claims(self, box: Outbox) -> None:
        """The first claim finds too few, and a destination is recorded before the second."""
        made = worker(box, "mailer")
        made.drain()
        emit(2)
        batch = claim(made.delivery, 2)
        assert batch is not None
        worker(box, "crm").drain()
        with box.dialect.connection():
            newest = read_recorded(box.dialect)[0]
        first, second = batch.events
        assert first.destinations_version != newest
        second.destinations_version = newest
        dispatch(made.delivery, batch)
        assert statuses() == {PENDING: 2}

    def test_a_batch_that_was_claimed_before_goes_by_what_was_recorded_then(self, box: Outbox) -> None:
        made = worker(box, "mailer")
        made.drain()
        emit_one()
        batch = claim(made.delivery, 10)
        assert batch is not None
        dispatch(made.delivery, batch)
        settle(made.delivery, batch)
        worker(box, "crm").drain()
        assert statuses() == {DELIVERED: 1}


class TestARetiredDestination:
    def test_ends_what_is_open_for_it_without_failing(self, box: Outbox) -> None:
        worker(box, "crm").drain()
        poor = worker(box, "mailer")
        event = emit_one()
        poor.drain()
        poor.registry.retire("crm")
        restarted = Outbox(box.settings, database=box.database, registry=poor.registry)
        restarted.become_worker()
        let_pass(minutes=2)
        restarted.drain()
        row = stored(event)
        assert (row.status, row.error_message) == (DELIVERED, None)
        assert {name: entry["state"] for name, entry in row.progress.items()} == {"crm": RETIRED, "mailer": DELIVERED}
        assert queries.delivered_to(box.dialect, row) == ("mailer",)

    def test_gets_nothing_more_from_a_worker_that_still_has_it(self, box: Outbox) -> None:
        calls: list[str] = []
        old = worker(box, "crm", "mailer", calls=calls)
        old.drain()
        new = worker(box, "mailer")
        new.registry.retire("crm")
        new.drain()
        emit_one()
        old.drain()
        assert (calls, statuses()) == (["mailer"], {DELIVERED: 1})

    def test_comes_back_with_a_worker_that_has_it(self, box: Outbox) -> None:
        worker(box, "crm").drain()
        new = worker(box, "mailer")
        new.registry.retire("crm")
        new.drain()
        worker(box, "crm").drain()
        emit_one()
        new.drain()
        assert statuses() == {PENDING: 1}

    def test_a_failed_entry_of_it_stays_failed(self, box: Outbox) -> None:
        made = worker(box)
        made.registry.handler("order.*", name="crm")(lambda _: 1 / 0)
        event = emit_one(max_attempts=1)
        made.drain()
        assert stored(event).status == FAILED
        new = worker(box, "mailer")
        new.registry.retire("crm")
        new.drain()
        assert stored(event).status == FAILED


class TestASuccessor:
    def test_goes_on_where_the_one_that_it_replaces_stopped(self, box: Outbox) -> None:
        calls: list[str] = []
        old = worker(box, "mailer", calls=calls)
        old.registry.handler("order.*", name="bus")(lambda _: (_ for _ in ()).throw(outbox.Unavailable("down")))
        event = emit_one()
        old.drain()
        new = replacing(box, "mailer-v2", "mailer", calls)
        new.registry.handler("order.*", name="bus")(lambda _: calls.append("bus"))
        let_pass(hours=1)
        new.drain()
        assert calls == ["mailer", "bus"]  # what the old one had, the new one has
        assert (stored(event).status, queries.delivered_to(box.dialect, stored(event))) == (
            DELIVERED,
            ("bus", "mailer-v2"),
        )

    def test_gets_what_the_old_one_had_not(self, box: Outbox) -> None:
        calls: list[str] = []
        worker(box, "mailer").drain()
        emit_one()
        worker(box, "other").drain()
        assert statuses() == {PENDING: 1}
        new = replacing(box, "mailer-v2", "mailer", calls)
        new.registry.handler("order.*", name="other")(lambda _: calls.append("other"))
        let_pass(minutes=2)
        new.drain()
        assert (calls, statuses()) == (["mailer-v2"], {DELIVERED: 1})

    def test_keeps_the_old_one_out_while_both_are_running(self, box: Outbox, caplog: pytest.LogCaptureFixture) -> None:
        calls: list[str] = []
        old = worker(box, "mailer", calls=calls)
        old.drain()
        new = replacing(box, "mailer-v2", "mailer", calls)
        new.drain()
        worker(box, "mailer", calls=calls).drain()  # an old one is started again
        assert "was replaced by mailer-v2" in caplog.text
        emit(2)
        old.drain()
        let_pass(minutes=2)
        new.drain()
        assert calls == ["mailer-v2"] * 2


def test_the_audience_of_each_event_is_written_in_mixed_batches(box: Outbox) -> None:
    outbox.handler("order.*", name="a")(lambda _: None)
    outbox.handler("user.*", "order.*", name="b")(lambda _: None)
    outbox.ignore("noise")
    emit(3, "order.placed")
    emit(3, "user.created")
    emit(1, "noise")
    box.process_pending_events()
    assert statuses() == {DELIVERED: 7}
    had = {event.event_type: queries.delivered_to(box.dialect, event) for event in OutboxEvent.select()}
    assert had == {"order.placed": ("a", "b"), "user.created": ("b",), "noise": ()}
