"""Handlers of events that are safe to repeat, because the inbox stands before them."""

from threading import Event as Gate

import pytest

import outbox
from outbox.core import Outbox
from outbox.inbox.once_decorator import SKIPPED
from outbox.storage.models import DELIVERED
from tests.conftest import Configure, Note
from tests.inbox.effects import inbox_rows, notes
from tests.support.table import another, at_work, emit, emit_one, expire_leases, let_pass, passes, statuses


@outbox.inbox.once("ledger")
def credit(event: outbox.Event) -> str:
    Note.create(text=event.event_type)
    return "credited"


def test_an_event_that_is_delivered_twice_after_a_lost_lease_has_one_effect(box: Outbox) -> None:
    credited, lost = Gate(), Gate()
    answers: list[object] = []

    @outbox.handler("order.placed", name="ledger")
    def handle(event: outbox.Event) -> None:
        answers.append(credit(event))
        if len(answers) == 1:  # committed, but nobody has written down that it was delivered
            credited.set()
            passes(lost)

    event = emit_one()
    with at_work(box, lost):
        passes(credited)
        expire_leases()
        another(box).process_pending_events()
    assert answers == ["credited", SKIPPED]
    assert (notes(), inbox_rows()) == (["order.placed"], [(str(event.id), "ledger")])
    assert statuses() == {DELIVERED: 1}
    assert (box.counters["skipped"], box.counters["fenced"]) == (1, 1)


def test_an_event_that_is_skipped_counts_as_delivered(box: Outbox) -> None:
    outbox.handler("order.placed", name="ledger")(credit)
    event = emit_one()
    with outbox.inbox.claim(event.id, "ledger"):
        pass
    box.process_pending_events()
    assert (statuses(), notes()) == ({DELIVERED: 1}, [])


def test_a_handler_that_failed_after_its_effect_has_it_once_when_it_is_tried_again(box: Outbox) -> None:
    attempts: list[int] = []

    @outbox.handler("order.placed", name="ledger")
    @outbox.inbox.once("ledger")
    def handle(event: outbox.Event) -> None:
        Note.create(text="credited")
        attempts.append(event.attempt)
        if event.attempt < 3:
            raise ValueError("after the effect")

    emit_one()
    for _ in range(4):
        box.process_pending_events()
        let_pass(hours=1)
    assert (attempts, notes(), statuses()) == ([1, 2, 3], ["credited"], {DELIVERED: 1})


def test_every_event_of_a_batch_has_a_transaction_of_its_own(box: Outbox) -> None:
    @outbox.handler("order.placed", name="ledger")
    @outbox.inbox.once("ledger")
    def handle(event: outbox.Event) -> None:
        Note.create(text=event.aggregate_id)
        if event.aggregate_id == "1":
            raise ValueError("this one alone")

    emit(3)
    box.process_pending_events()
    assert notes() == ["0", "2"]
    assert len(inbox_rows()) == 2


def test_an_operators_retry_of_an_event_that_had_its_effect_is_skipped(box: Outbox) -> None:
    @outbox.handler("order.placed", name="ledger")
    def handle(event: outbox.Event) -> None:
        if credit(event) is not SKIPPED:
            raise outbox.Reject("it has happened, but who could know")

    emit_one()
    box.process_pending_events()
    assert box.retry_failed_events() == 1
    box.process_pending_events()
    assert (notes(), statuses()) == (["order.placed"], {DELIVERED: 1})


@pytest.mark.parametrize("dispatch", ["inline", "off"])
def test_a_chain_of_handlers_that_emit_has_each_effect_once(configure: Configure, dispatch: str) -> None:
    box = configure(dispatch=dispatch)

    @outbox.handler("order.placed", name="charge")
    @outbox.inbox.once("charge")
    def charge(event: outbox.Event) -> None:
        Note.create(text="charged")
        outbox.emit("Order", event.aggregate_id, "order.paid")

    outbox.handler("order.paid", name="ledger")(credit)
    with box.database.atomic():
        outbox.emit("Order", 7, "order.placed")
    while dispatch == "off" and box.process_pending_events()["processed"]:
        pass
    assert (notes(), statuses()) == (["charged", "order.paid"], {DELIVERED: 2})
    assert [handler for _, handler in inbox_rows()] == ["charge", "ledger"]


def test_inline_a_failure_does_not_reach_the_emitter_and_is_retried_later(configure: Configure) -> None:
    box = configure(dispatch="inline")

    @outbox.handler("order.placed", name="ledger")
    @outbox.inbox.once("ledger")
    def handle(event: outbox.Event) -> None:
        Note.create(text="credited")
        if event.attempt == 1:
            raise ValueError("not yet")

    outbox.emit("Order", 7, "order.placed")
    assert (notes(), inbox_rows()) == ([], [])
    let_pass(hours=1)
    box.process_pending_events()
    assert (notes(), len(inbox_rows())) == (["credited"], 1)
