"""Workers and encrypted events: they wait for a worker with the key, and hold up no other event."""

import json
import logging
from typing import Any

import pytest

import outbox
from outbox.core import Outbox
from outbox.dramatiq.job import BrokerRole
from outbox.storage.models import DELIVERED, FAILED, PENDING, RUN, OutboxEvent
from outbox.storage.progress import MISSING_KEY
from tests.conftest import Configure
from tests.support.encryption import NEW, OLD, damage, with_keys
from tests.support.jobs import charge, enqueued, row_of, stub_broker
from tests.support.table import another, change, emit, emit_one, error_of, let_pass, statuses, stored

__all__ = ["charge", "stub_broker"]


@pytest.fixture
def box(configure: Configure) -> Outbox:
    return configure(encryption_keys=NEW.text)


@pytest.fixture
def got(box: Outbox) -> list[Any]:
    """The payloads that the handler `keep` has got."""
    seen: list[Any] = []
    box.registry.handler("order.*", name="keep")(lambda event: seen.append(event.payload))
    return seen


def test_an_event_waits_for_a_worker_that_has_its_key(box: Outbox, got: list[Any]) -> None:
    event = emit_one(payload={"n": 1})
    for other in (with_keys(box), with_keys(box, OLD.text)):
        other.process_pending_events()
        row = stored(event)
        assert (row.status, row.attempts) == (PENDING, 0)
        assert f"keep: encrypted with the key {NEW.id}, which this process does not have" in error_of(event)
        assert row.progress["keep"]["reason"] == MISSING_KEY
        let_pass(minutes=2)
    assert got == []
    box.process_pending_events()
    assert got == [{"n": 1}]
    assert (stored(event).status, stored(event).attempts) == (DELIVERED, 1)


def test_however_long_it_waits_it_does_not_fail(box: Outbox, got: list[Any]) -> None:
    event, other = emit_one(payload={"n": 1}, max_attempts=1), with_keys(box)
    for _ in range(20):
        other.process_pending_events()
        let_pass(hours=30)
    assert (stored(event).status, stored(event).attempts) == (PENDING, 0)
    box.process_pending_events()
    assert got == [{"n": 1}]


def test_the_other_events_of_the_batch_go_on(box: Outbox, got: list[Any]) -> None:
    emit_one(payload={"n": 1})
    with_keys(box, OLD.text).emit("Order", 2, "order.placed", {"n": 2})
    with_keys(box).emit("Order", 3, "order.placed", {"n": 3})
    with_keys(box, OLD.text).process_pending_events()
    assert got == [{"n": 2}, {"n": 3}]
    assert statuses() == {DELIVERED: 2, PENDING: 1}


def test_a_worker_reads_rows_of_all_its_keys_and_rows_in_plain_text(box: Outbox, got: list[Any]) -> None:
    with_keys(box).emit("Order", 1, "order.placed", {"n": 1})
    with_keys(box, OLD.text).emit("Order", 2, "order.placed", {"n": 2})
    emit_one(payload={"n": 3})
    with_keys(box, NEW.text, OLD.text).process_pending_events()
    assert got == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_a_missing_key_is_logged_once(box: Outbox, got: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    emit(5)
    emit(5, payload={"n": 1})
    other = with_keys(box)
    with caplog.at_level(logging.WARNING):
        other.process_pending_events()
    (line,) = [record.getMessage() for record in caplog.records if NEW.id in record.getMessage()]
    assert "Events wait for a worker that can decrypt them" in line


def test_an_event_that_was_changed_fails_and_says_so(box: Outbox, got: list[Any]) -> None:
    bad, good = emit_one(payload={"n": 1}), emit_one(payload={"n": 2})
    damage(stored(bad))
    box.process_pending_events()
    assert got == [{"n": 2}]
    assert stored(bad).status == FAILED
    assert "keep: the payload can't be decrypted: it was changed after it was encrypted" in error_of(bad)
    assert stored(good).status == DELIVERED


def test_the_payload_of_another_row_is_not_delivered(box: Outbox, got: list[Any]) -> None:
    one, two = emit_one(payload={"n": 1}), emit_one(payload={"n": 2})
    change(one, payload=stored(two).payload)
    box.process_pending_events()
    assert got == [{"n": 2}]
    assert stored(one).status == FAILED


def test_a_key_keeps_its_order_behind_an_event_that_waits(box: Outbox, got: list[Any]) -> None:
    emit_one(payload={"n": 1}, ordering_key="k")
    other = with_keys(box, OLD.text)
    other.emit("Order", 2, "order.placed", {"n": 2}, ordering_key="k")
    other.emit("Order", 3, "order.placed", {"n": 3}, ordering_key="other")
    other.process_pending_events()
    assert got == [{"n": 3}]
    let_pass(minutes=2)
    other.process_pending_events()
    assert got == [{"n": 3}]
    both = with_keys(box, OLD.text, NEW.text)
    let_pass(minutes=2)
    both.process_pending_events()
    both.process_pending_events()
    assert got == [{"n": 3}, {"n": 1}, {"n": 2}]


def test_each_destination_of_an_event_waits(box: Outbox, got: list[Any]) -> None:
    more: list[Any] = []
    box.registry.handler("order.placed", name="more")(lambda event: more.append(event.payload))
    event = emit_one(payload={"n": 1})
    with_keys(box).process_pending_events()
    assert set(stored(event).progress) == {"keep", "more"}
    let_pass(minutes=2)
    box.process_pending_events()
    assert got == more == [{"n": 1}]


def test_a_job_waits_for_a_worker_that_has_its_key(box: Outbox, charge: Any, stub_broker: Any) -> None:
    message = outbox.send(charge, 42)
    job = row_of(message)
    with_keys(box).process_pending_events()
    row = stored(job)
    assert (row.status, row.attempts) == (PENDING, 0)
    assert f"encrypted with the key {NEW.id}" in error_of(job)
    assert enqueued(stub_broker) == []
    let_pass(minutes=2)
    box.process_pending_events()
    assert [each.args for each in enqueued(stub_broker)] == [(42,)]
    assert stored(job).status == DELIVERED


def test_the_headers_that_name_a_jobs_broker_are_decrypted_before_it_is_looked_up(
    box: Outbox, charge: Any, stub_broker: Any
) -> None:
    job = row_of(outbox.send(charge, 42))
    del stub_broker.actors["charge"]  # this worker enqueues it only if the message is for its broker
    assert box.cipher is not None
    _, headers = box.cipher.encrypt(job.id, "{}", json.dumps({"broker_role": BrokerRole.OTHER.value, "broker": "x"}))
    OutboxEvent.update(headers=headers).where(OutboxEvent.id == job.id).execute()
    box.process_pending_events()
    assert enqueued(stub_broker) == []
    assert stored(job).status == PENDING


def test_a_run_waits_for_a_worker_that_has_its_key(box: Outbox, got: list[Any]) -> None:
    event = emit_one(payload={"n": 1})
    change(event, kind=RUN)
    with_keys(box).process_pending_events()
    assert set(stored(event).progress) == {RUN}
    assert stored(event).status == PENDING


def test_the_bytes_are_the_same_at_every_attempt(box: Outbox) -> None:
    bodies: list[bytes] = []

    def fail(event: outbox.Event) -> None:
        bodies.append(event.body)
        raise ValueError("no")

    box.registry.handler("*", name="fail")(fail)
    emit_one(payload={"name": "Grüße", "n": [1, 2.50]})
    with_keys(box, OLD.text, NEW.text).process_pending_events()
    let_pass(hours=1)
    another(box).process_pending_events()
    assert bodies == [b'{"name":"Gr\xc3\xbc\xc3\x9fe","n":[1,2.5]}'] * 2


def test_an_event_that_nobody_wants_ends_without_its_key(configure: Configure) -> None:
    box = configure(encryption_keys=NEW.text)
    box.registry.ignore("order.*")
    event = emit_one(payload={"n": 1})
    with_keys(box).process_pending_events()
    assert stored(event).status == DELIVERED
