"""A duplicate delivery happens only after a crash or a lost lease, with the same id and the same bytes."""

from concurrent.futures import ThreadPoolExecutor

import outbox
from outbox.core import Outbox
from outbox.delivery.claim import claim
from outbox.storage.models import DELIVERED, PENDING
from tests.support.table import another, emit, emit_one, expire_leases, let_pass, statuses

PAYLOAD = {"b": 1, "a": "naïve ☃ \\u0000", "nested": {"z": [1.0, 1e100, None]}, "a ": 2}


def collect(box: Outbox, refused: int) -> list[outbox.Event]:
    """Return a handler that refuses an event so many times, and the list of events that it got."""
    got: list[outbox.Event] = []
    box.registry.clear()

    @outbox.handler("*", name="collector")
    def handle(event: outbox.Event) -> None:
        got.append(event)
        if len(got) <= refused:
            raise ValueError("no")

    return got


def test_a_retry_has_the_same_id_and_the_same_bytes(box: Outbox) -> None:
    got = collect(box, refused=2)
    emitted = emit_one(payload=PAYLOAD, headers={"traceparent": "00-1"})
    for _ in range(3):
        box.process_pending_events()
        let_pass(hours=1)
    assert [event.attempt for event in got] == [1, 2, 3]
    assert {event.id for event in got} == {emitted.id}
    assert len({event.body for event in got}) == 1
    assert got[0].payload == PAYLOAD
    assert {str(event.headers) for event in got} == {str({"traceparent": "00-1"})}


def test_a_redelivery_after_a_crash_has_the_same_id_and_the_same_bytes(box: Outbox) -> None:
    got = collect(box, refused=0)
    emitted = emit_one(payload=PAYLOAD)
    batch = claim(box.delivery, 1)
    assert batch is not None
    crashed = batch.events[0]
    expire_leases()
    box.process_pending_events()
    assert [event.id for event in got] == [emitted.id] == [crashed.id]
    assert got[0].body == crashed.body


def test_workers_at_once_deliver_each_event_once(box: Outbox) -> None:
    got = collect(box, refused=0)
    emit(300)
    workers = [another(box) for _ in range(4)]
    with ThreadPoolExecutor(len(workers)) as executor:
        claims = list(executor.map(Outbox.drain, workers))
    while box.drain():  # beside other workers a batch may not be full although more is due: a sweep finds the rest
        pass
    assert sum(claims) <= 300
    assert sorted(event.seq for event in got) == sorted({event.seq for event in got})
    assert statuses() == {DELIVERED: 300}
    assert sum(worker.counters["fenced"] for worker in workers) == 0


def test_stopping_in_the_middle_of_a_batch_doubles_nothing(box: Outbox) -> None:
    got = collect(box, refused=0)
    outbox.handler("*", name="stopper")(lambda _: box.stopping.set())
    emit(20)
    box.process_pending_events()
    box.stopping.clear()
    box.registry.handler("*", name="idle")(lambda _: None)
    while box.process_pending_events()["processed"]:
        box.stopping.clear()
    assert statuses()[PENDING] == 0
    assert sorted(event.seq for event in got) == sorted({event.seq for event in got})
    assert len(got) == 20
