"""A job on an in-process broker ends when its actor has run, or goes back to the table."""

from collections.abc import Iterator
from typing import Any

import dramatiq
import pytest

import outbox
from outbox.core import Outbox
from outbox.destinations.outcome import Delivered
from outbox.destinations.protocol import Lease
from outbox.dramatiq.in_process_broker import InProcessBroker
from outbox.dramatiq.job_completion import DELIVERY_ID
from outbox.events.event import Event
from tests.support.table import claimed

Ran = list[Any]


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    broker = InProcessBroker()
    dramatiq.set_broker(broker)
    yield broker
    dramatiq.broker.global_broker = None


@pytest.fixture
def ran() -> Ran:
    return []


@pytest.fixture
def jobs(box: Outbox, broker: InProcessBroker, ran: Ran) -> list[Event]:
    """Return three claimed jobs of an actor."""

    @dramatiq.actor(max_retries=0)
    def work(number: int) -> None:
        ran.append(number)

    with box.database.atomic():
        for number in range(3):
            outbox.send(work, number)
    return claimed(box).events


def test_a_job_is_delivered_once_its_actor_has_run(broker: InProcessBroker, jobs: list[Event], ran: Ran) -> None:
    worker = dramatiq.Worker(broker, worker_threads=1, worker_timeout=50)
    worker.start()
    try:
        for number, (_, outcome) in enumerate(broker.completion.deliver(broker, iter(jobs), Lease.lasting(60))):
            assert isinstance(outcome, Delivered)
            assert ran == list(range(number + 1))  # one thread: the next job is not taken before
    finally:
        worker.stop()


def test_a_job_whose_actor_has_not_begun_when_the_lease_ends_goes_back_and_does_not_run(
    broker: InProcessBroker, jobs: list[Event], ran: Ran
) -> None:
    worker = dramatiq.Worker(broker, worker_threads=1, worker_timeout=50)
    broker.completion.before_worker_boot(broker, worker)  # a worker whose thread never comes to the message
    ((_, outcome),) = broker.completion.deliver(broker, iter(jobs[:1]), Lease.lasting(0))
    assert isinstance(outcome, outbox.Unavailable)
    worker.start()
    broker.join("default")
    worker.stop()
    assert ran == []


def test_a_job_that_went_back_and_is_delivered_again_waits_for_its_own_message(
    broker: InProcessBroker, jobs: list[Event], ran: Ran
) -> None:
    worker = dramatiq.Worker(broker, worker_threads=1, worker_timeout=50)
    broker.completion.before_worker_boot(broker, worker)
    list(broker.completion.deliver(broker, iter(jobs[:1]), Lease.lasting(0)))  # its message stays in the queue
    worker.start()
    try:
        for _, outcome in broker.completion.deliver(broker, iter(jobs[:1]), Lease.lasting(60)):
            assert isinstance(outcome, Delivered)
            assert ran == [0]
    finally:
        worker.stop()
    assert ran == [0]


def test_each_delivery_of_a_job_has_an_id_of_its_own(broker: InProcessBroker, jobs: list[Event]) -> None:
    worker = dramatiq.Worker(broker, worker_threads=1)
    broker.completion.before_worker_boot(broker, worker)
    for _ in range(2):
        list(broker.completion.deliver(broker, iter(jobs[:1]), Lease.lasting(0)))
    first, second = (dramatiq.Message.decode(text).options[DELIVERY_ID] for text in broker.queues["default"].queue)
    assert first != second


def test_without_a_worker_in_this_process_a_job_is_delivered_when_it_is_enqueued(
    box: Outbox, broker: InProcessBroker, ran: Ran
) -> None:
    assert not broker.completion.can_wait

    @dramatiq.actor
    def work() -> None:
        pass

    with box.database.atomic():
        outbox.send(work)
    box.process_pending_events()
    assert broker.queues["default"].qsize() == 1


def test_a_worker_thread_does_not_wait_for_itself(box: Outbox, broker: InProcessBroker) -> None:
    waited = []

    @dramatiq.actor(max_retries=0)
    def look() -> None:
        waited.append(broker.completion.can_wait)

    worker = dramatiq.Worker(broker, worker_threads=1, worker_timeout=50)
    worker.start()
    look.send()
    broker.join("default")
    assert broker.completion.can_wait
    worker.stop()
    assert waited == [False]
