"""A drain may run a share in its own thread, if nothing else is left for it to do, and another thread can listen."""

import threading
from contextvars import ContextVar
from threading import Event as Gate

import outbox
from outbox.core import Outbox
from outbox.delivery.drain_thread import DrainThread
from outbox.storage.models import DELIVERED
from tests.conftest import Configure
from tests.support.crowd import elsewhere
from tests.support.outbox_parts import waiting_for_handlers
from tests.support.servers import PATIENCE_SECONDS
from tests.support.table import emit, emit_one, error_of, statuses


def ran_in(box: Outbox, thread: DrainThread | None) -> list[int]:
    """Drain, and return the threads in which the handler was called."""
    called: list[int] = []
    outbox.handler("order.*", name="handler")(lambda _: called.append(threading.get_ident()))
    box.drain(thread)
    return called


class TestAnEventAlone:
    def test_is_handled_in_the_thread_that_drains_once_another_listens(self, configure: Configure) -> None:
        box = configure()
        hand_overs: list[int] = []
        called: list[tuple[int, int]] = []

        @outbox.handler("order.*", name="handler")
        def handle(_: outbox.Event) -> None:
            called.append((threading.get_ident(), len(hand_overs)))

        emit_one()
        assert box.drain(DrainThread(lambda: hand_overs.append(1))) == 1
        assert called == [(threading.get_ident(), 1)]
        assert statuses() == {DELIVERED: 1}

    def test_is_handled_in_another_thread_if_the_thread_that_drains_is_not_to_be_occupied(
        self, configure: Configure
    ) -> None:
        box = waiting_for_handlers(configure())
        emit_one()
        assert threading.get_ident() not in ran_in(box, None)

    def test_takes_no_slot_while_it_is_handled(self, configure: Configure) -> None:
        box = configure(drains=1)
        found: list[int] = []

        @outbox.handler("order.first", name="first")
        def handle(_: outbox.Event) -> None:
            emit_one("order.second")
            found.append(elsewhere(box.database, box.drain))

        outbox.handler("order.second", name="second")(lambda _: None)
        emit_one("order.first")
        assert box.drain(DrainThread(lambda: None)) == 1
        assert found == [1]
        assert statuses() == {DELIVERED: 2}

    def test_leaves_no_context_variables_and_no_name_behind(self, configure: Configure) -> None:
        box, name, variable = configure(), threading.current_thread().name, ContextVar("variable", default=0)
        names: list[str] = []

        @outbox.handler("order.*", name="handler")
        def handle(_: outbox.Event) -> None:
            variable.set(1)
            names.append(threading.current_thread().name)

        emit_one()
        box.drain(DrainThread(lambda: None))
        assert (names, variable.get()) == (["outbox-to-handler"], 0)
        assert threading.current_thread().name == name

    def test_that_takes_too_long_is_interrupted_and_the_thread_goes_on(self, configure: Configure) -> None:
        box, is_over = configure(lease_seconds=0.8, max_run_seconds=1), Gate()

        @outbox.handler("order.slow", name="slow")
        def handle(_: outbox.Event) -> None:
            while not is_over.is_set():  # in Python, so that an interrupt can reach it
                is_over.wait(0.01)

        slow = emit_one("order.slow")
        timer = threading.Timer(PATIENCE_SECONDS, is_over.set)
        timer.start()
        box.drain(DrainThread(lambda: None))
        timer.cancel()
        assert error_of(slow) == "slow: Overdue: the call took longer than OUTBOX_MAX_RUN_SECONDS"
        outbox.ignore("order.quick")
        emit_one("order.quick")
        assert box.drain(DrainThread(lambda: None)) == 1


class TestEventsThatAreHandledInThreadsOfTheirOwn:
    def test_a_full_batch_because_the_drain_goes_on(self, configure: Configure) -> None:
        box = waiting_for_handlers(configure(batch_size=2))
        emit(4)
        assert threading.get_ident() not in ran_in(box, DrainThread(lambda: None))
        assert statuses() == {DELIVERED: 4}

    def test_those_of_several_destinations_because_one_must_not_wait_for_another(self, configure: Configure) -> None:
        box = waiting_for_handlers(configure())
        outbox.handler("order.*", name="other")(lambda _: None)
        emit_one()
        assert threading.get_ident() not in ran_in(box, DrainThread(lambda: None))

    def test_one_with_an_ordering_key_because_others_may_wait_for_it(self, configure: Configure) -> None:
        box = waiting_for_handlers(configure())
        emit_one(ordering_key="key")
        assert threading.get_ident() not in ran_in(box, DrainThread(lambda: None))

    def test_one_beside_which_a_wake_up_was_refused_because_the_drain_claims_again(self, configure: Configure) -> None:
        box = waiting_for_handlers(configure(drains=1))
        refused: list[int] = []

        def commit_and_wake_up() -> None:
            if not refused:
                emit_one()
                refused.append(elsewhere(box.database, box.drain))

        emit_one()
        called = ran_in(box, DrainThread(commit_and_wake_up))
        assert [each == threading.get_ident() for each in called] == [False, True]
        assert refused == [0]
        assert statuses() == {DELIVERED: 2}
