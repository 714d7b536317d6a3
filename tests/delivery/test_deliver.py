"""process_pending_events: one batch, and what becomes of events that nothing here handles."""

import logging
from collections.abc import Callable
from datetime import timedelta

import pytest

import outbox
from outbox.core import Outbox
from outbox.delivery.deliver import REMAINING_CAP
from outbox.errors import SettingsError, TransactionOpen
from outbox.settings import Settings
from outbox.storage.models import DELIVERED, FAILED, PENDING
from tests.conftest import Configure
from tests.support.table import change, claimed, emit, emit_one, error_of, let_pass, statuses, stored


def register(*names: str, event_type: str = "order.*") -> list[str]:
    """Register handlers by name; return the list of those that were called."""
    called: list[str] = []
    for name in names:
        outbox.handler(event_type, name=name)(lambda _, name=name: called.append(name))
    return called


class TestResults:
    def test_nothing_due_is_nothing_done(self, box: Outbox) -> None:
        assert box.process_pending_events() == {"processed": 0, "remaining": 0}

    def test_it_runs_one_batch_and_counts_what_is_left(self, box: Outbox) -> None:
        register("taker")
        emit(7)
        assert box.process_pending_events(batch_size=3) == {"processed": 3, "remaining": 4}
        assert box.process_pending_events(batch_size=4) == {"processed": 4, "remaining": 0}
        assert statuses() == {DELIVERED: 7}

    def test_what_is_not_due_or_leased_to_another_does_not_remain(self, box: Outbox) -> None:
        register("taker")
        emit(2, deliver_after=timedelta(hours=1))
        emit(2)
        claimed(box, 1)
        assert box.process_pending_events(batch_size=1) == {"processed": 1, "remaining": 0}

    def test_an_event_that_was_refused_is_processed_and_does_not_remain(self, box: Outbox) -> None:
        outbox.handler("*", name="refuser")(lambda _: 1 / 0)
        emit(1)
        assert box.process_pending_events() == {"processed": 1, "remaining": 0}

    def test_remaining_is_counted_up_to_a_cap(self, box: Outbox) -> None:
        register("taker")
        emit(REMAINING_CAP + 1)
        assert box.process_pending_events(1) == {"processed": 1, "remaining": REMAINING_CAP}
        assert box.process_pending_events(1) == {"processed": 1, "remaining": REMAINING_CAP - 1}

    def test_the_batch_size_defaults_to_the_setting(self, configure: Configure) -> None:
        configure(batch_size=2)
        register("taker")
        emit(3)
        assert outbox.process_pending_events() == {"processed": 2, "remaining": 1}

    @pytest.mark.parametrize("size", [0, -1])
    def test_a_batch_size_below_one_is_refused(self, box: Outbox, size: int) -> None:
        with pytest.raises(SettingsError, match="batch_size"):
            box.process_pending_events(size)


class TestTransactions:
    def test_inside_a_transaction_it_is_refused_and_nothing_is_claimed(self, box: Outbox) -> None:
        called = register("taker")
        event = emit_one()
        with box.database.atomic(), pytest.raises(TransactionOpen):
            box.process_pending_events()
        with pytest.raises(TransactionOpen), box.database.atomic():
            box.drain()
        assert (called, stored(event).attempts) == ([], 0)

    def test_a_plain_begin_counts_as_a_transaction(self, box: Outbox) -> None:
        box.database.execute_sql("BEGIN")
        with pytest.raises(TransactionOpen):
            box.process_pending_events()
        box.database.execute_sql("ROLLBACK")


class TestNothingRegistered:
    def test_events_are_delivered_with_one_warning(self, box: Outbox, caplog: pytest.LogCaptureFixture) -> None:
        with box.database.atomic():
            emit(3)
        box.process_pending_events(2)
        box.process_pending_events(2)
        assert statuses() == {DELIVERED: 3}
        warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(warnings) == 1
        assert "Nothing is registered in this process" in warnings[0].getMessage()

    def test_a_worker_marks_nothing_delivered(self, box: Outbox) -> None:
        box.is_worker = True
        emit(3)
        box.process_pending_events()
        assert statuses() == {PENDING: 3}

    def test_a_process_can_not_become_a_worker(self, box: Outbox) -> None:
        with pytest.raises(outbox.RegistrationError, match=r"no handler is registered.*\(imported: shop\)"):
            box.become_worker(["shop"])
        assert not box.is_worker

    @pytest.mark.parametrize("register", [lambda: outbox.ignore("*"), lambda: outbox.handler("*")(print)])
    def test_a_process_with_anything_registered_becomes_one_and_stays_one(
        self, configure: Configure, register: Callable[[], object]
    ) -> None:
        register()
        configure().become_worker()
        assert configure().is_worker


class TestUnhandled:
    MESSAGE = "nothing here handles 'mystery': start the worker with the module that does"

    @pytest.fixture(autouse=True)
    def _someone_else_is_registered(self) -> None:
        register("taker")

    def test_an_event_waits_by_default(self, box: Outbox) -> None:
        event = emit_one("mystery", max_attempts=1)
        for _ in range(3):
            box.process_pending_events()
            let_pass(hours=1)
        row = stored(event)
        assert (row.status, row.attempts) == (PENDING, 0)
        assert self.MESSAGE in error_of(event)
        assert "outbox.ignore('mystery')" in error_of(event)

    def test_it_fails_at_the_maximum_age(self, box: Outbox) -> None:
        event = emit_one("mystery")
        box.process_pending_events()
        let_pass(hours=73)
        box.process_pending_events()
        assert stored(event).status == FAILED
        assert "OUTBOX_MAX_AGE_HOURS" in error_of(event)

    def test_it_can_be_delivered_instead(self, configure: Configure) -> None:
        box = configure(unhandled="deliver")
        event = emit_one("mystery")
        box.process_pending_events()
        assert (stored(event).status, stored(event).error_message) == (DELIVERED, None)

    def test_it_can_be_failed_instead(self, configure: Configure) -> None:
        box = configure(unhandled="fail")
        event = emit_one("mystery")
        box.process_pending_events()
        assert stored(event).status == FAILED
        assert self.MESSAGE in error_of(event)
        assert "(OUTBOX_UNHANDLED=fail)" in error_of(event)

    @pytest.mark.parametrize("unhandled", ["wait", "fail"])
    def test_an_ignored_type_is_delivered(self, configure: Configure, unhandled: str) -> None:
        box = configure(unhandled=unhandled)
        outbox.ignore("mystery", "audit.*")
        emit(1, "mystery")
        emit(1, "audit.login")
        box.process_pending_events()
        assert statuses() == {DELIVERED: 2}

    def test_a_type_that_is_ignored_later_is_delivered_when_due_again(self, box: Outbox) -> None:
        event = emit_one("mystery")
        box.process_pending_events()
        outbox.ignore("mystery")
        let_pass(hours=1)
        box.process_pending_events()
        assert stored(event).status == DELIVERED

    def test_a_handler_that_appears_later_gets_it_with_all_its_attempts(self, box: Outbox) -> None:
        event = emit_one("mystery", max_attempts=1)
        box.process_pending_events()
        called = register("late", event_type="mystery")
        let_pass(hours=1)
        box.process_pending_events()
        row = stored(event)
        assert (called, row.status, row.attempts, row.error_message) == (["late"], DELIVERED, 1, None)

    def test_ignoring_a_type_does_not_keep_it_from_its_handlers(self, box: Outbox) -> None:
        outbox.ignore("order.*")
        called = register("other")
        emit(1)
        box.process_pending_events()
        assert called == ["other"]


class TestAMissingDestination:
    """Progress waits for one that this worker does not have: an old worker, during a rollout."""

    @pytest.fixture
    def old_worker(self, box: Outbox) -> Outbox:
        """One that has `here`, while the others have `elsewhere` as well."""
        old = Outbox(box.settings, database=box.database)
        old.registry.handler("order.*", name="here")(lambda _: None)
        return old

    def waiting_for_elsewhere(self, box: Outbox) -> outbox.OutboxEvent:
        """An event that `here` has, and that `elsewhere` has refused once."""
        register("here")

        @outbox.handler("order.*", name="elsewhere")
        def refuse_once(event: outbox.Event) -> None:
            if event.attempt == 1:
                raise ValueError("no")

        event = emit_one()
        box.process_pending_events()
        let_pass(hours=1)
        return event

    def test_it_goes_on_waiting_at_no_cost_until_a_worker_has_it(self, box: Outbox, old_worker: Outbox) -> None:
        event = self.waiting_for_elsewhere(box)
        old_worker.process_pending_events()
        row = stored(event)
        assert (row.status, row.attempts) == (PENDING, 1)
        assert row.error_message == "elsewhere: 'elsewhere' is not registered in this worker"
        let_pass(hours=1)
        box.process_pending_events()
        assert (stored(event).status, stored(event).attempts) == (DELIVERED, 2)

    @pytest.mark.parametrize("unhandled", ["deliver", "fail"])
    def test_the_setting_for_unhandled_events_does_not_apply_to_it(self, box: Outbox, unhandled: str) -> None:
        event = self.waiting_for_elsewhere(box)
        strict = Outbox(Settings(dispatch="off", unhandled=unhandled), database=box.database)
        strict.registry.handler("order.*", name="here")(lambda _: None)
        strict.process_pending_events()
        assert (stored(event).status, stored(event).attempts) == (PENDING, 1)

    def test_destinations_that_have_ended_are_not_waited_for(self, box: Outbox, old_worker: Outbox) -> None:
        event = emit_one()
        change(event, progress={"gone": {"state": DELIVERED, "attempts": 1}})
        old_worker.process_pending_events()
        assert stored(event).status == DELIVERED
