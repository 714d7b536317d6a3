"""At most OUTBOX_DRAINS drains run in a process, and no wake-up that is turned away is forgotten."""

import threading
from contextlib import ExitStack
from typing import Any

import pytest

import outbox
from outbox.delivery import deliver
from outbox.delivery.batch import Batch
from outbox.delivery.drain_limit import DrainLimit
from outbox.storage.models import DELIVERED
from tests.conftest import Configure
from tests.support.crowd import at_once, elsewhere
from tests.support.outbox_parts import waiting_for_handlers
from tests.support.servers import PATIENCE_SECONDS
from tests.support.table import emit, emit_one, statuses


class TestSlots:
    @pytest.mark.parametrize("most", [1, 3])
    def test_there_are_as_many_as_the_setting_says(self, most: int) -> None:
        limit = DrainLimit(most)
        with ExitStack() as stack:
            slots = [stack.enter_context(limit.slot()) for _ in range(most + 2)]
            assert [slot is not None for slot in slots] == [True] * most + [False] * 2
        with limit.slot() as slot:
            assert slot is not None

    def test_one_is_free_again_once_its_drain_has_failed(self) -> None:
        limit = DrainLimit(1)
        with pytest.raises(ValueError, match="failed"), limit.slot():
            raise ValueError("failed")
        with limit.slot() as slot:
            assert slot is not None

    def test_one_can_be_waited_for(self) -> None:
        limit = DrainLimit(1)
        found: list[bool] = []
        waiting = threading.Thread(target=lambda: found.append(limit.wait_for_slot(PATIENCE_SECONDS)))
        with limit.slot():
            assert not limit.wait_for_slot(0)
            waiting.start()
        waiting.join()
        assert found == [True]

    def test_one_that_is_released_inside_the_block_is_free_once(self) -> None:
        limit = DrainLimit(1)
        with limit.slot() as slot:
            assert slot is not None
            assert slot.release()
        with limit.slot() as first, limit.slot() as second:
            assert first is not None
            assert second is None

    def test_one_is_kept_if_another_drain_was_refused_after_the_last_claim_began(self) -> None:
        limit = DrainLimit(1)
        with limit.slot() as slot:
            assert slot is not None
            slot.claim_starts()
            with limit.slot():
                pass
            assert not slot.release()
            slot.claim_starts()
            assert slot.release()

    def test_one_is_released_if_the_refused_drain_came_before_the_claim_began(self) -> None:
        limit = DrainLimit(1)
        with limit.slot() as slot:
            assert slot is not None
            with limit.slot():
                pass
            slot.claim_starts()
            assert slot.release()


class TestDrains:
    def test_what_is_committed_while_all_slots_are_taken_is_found_by_a_drain_that_runs(
        self, configure: Configure
    ) -> None:
        """Its own claim came back short: without the request it would end."""
        box = waiting_for_handlers(configure(drains=1))
        refused: list[int] = []

        @outbox.handler("order.first", name="first")
        def handle(_: outbox.Event) -> None:
            elsewhere(box.database, commit_and_drain)

        def commit_and_drain() -> None:
            emit_one("order.second")
            refused.append(box.drain())

        outbox.handler("order.second", name="second")(lambda _: None)
        emit_one("order.first")
        assert box.drain() == 2
        assert refused == [0]
        assert statuses() == {DELIVERED: 2}

    def test_one_that_is_asked_again_and_again_ends_when_its_time_is_up(self, configure: Configure) -> None:
        box = configure(drains=1)
        left = iter(range(5))

        @outbox.handler("order.*", name="asks")
        def ask(_: outbox.Event) -> None:
            if next(left, None) is not None:
                elsewhere(box.database, lambda: (emit(1), box.drain()))

        emit(1)
        assert deliver.drain(box.delivery, seconds=0) == 1

    def test_a_refused_drain_counts_neither_as_success_nor_as_failure(self, configure: Configure) -> None:
        box = configure(drains=1)
        with pytest.raises(ValueError, match="failed"), box.drain_failures.watching():
            raise ValueError("failed")
        with box.delivery.drain_limit.slot():
            assert box.drain() == 0
        assert box.drain_failures.report()["in_a_row"] == 1
        box.drain()
        assert box.drain_failures.report() == {}

    def test_no_wake_up_is_lost_however_many_come_at_once(self, configure: Configure) -> None:
        """Each commits and drains once, as a wake-up does; when the last drain has ended nothing is left."""
        box = configure(drains=2)
        outbox.handler("order.*", name="handler")(lambda _: None)

        def commit_and_drain() -> None:
            for _ in range(5):
                emit_one()
                box.drain()

        assert at_once(box.database, [commit_and_drain] * 8) == [None] * 8
        assert statuses() == {DELIVERED: 40}

    def test_no_more_than_so_many_batches_are_claimed_at_once(
        self, configure: Configure, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        box = configure(drains=2, batch_size=1)
        outbox.handler("order.*", name="handler")(lambda _: None)
        lock, running, most = threading.Lock(), 0, 0
        deliver_batch = deliver.deliver_batch

        def counted(*arguments: Any) -> Batch | None:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            try:
                return deliver_batch(*arguments)
            finally:
                with lock:
                    running -= 1

        monkeypatch.setattr(deliver, "deliver_batch", counted)
        emit(40)
        at_once(box.database, [box.drain] * 8)
        while box.drain():  # on a slow machine the time of those drains may be over before all events are delivered
            pass
        assert statuses() == {DELIVERED: 40}
        assert most <= 2
