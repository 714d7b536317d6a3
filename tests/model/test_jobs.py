"""Whatever transactions, savepoints, sends, replacements and cancellations follow each other: what commits is sent."""

from collections.abc import Iterator

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker
from hypothesis.stateful import run_state_machine_as_test

import outbox
from outbox.core import Outbox
from tests.model.job_machine import JobMachine
from tests.support.thoroughness import thorough


@pytest.fixture
def broker(box: Outbox) -> Iterator[StubBroker]:
    broker = StubBroker()
    dramatiq.set_broker(broker)
    yield outbox.transactional(broker, databases=[box.database])
    dramatiq.broker.global_broker = None


def test_what_commits_is_sent_and_nothing_else(box: Outbox, broker: StubBroker) -> None:
    @dramatiq.actor
    def work(number: int) -> None:
        pass

    class OnThisDatabase(JobMachine):
        def __init__(self) -> None:
            super().__init__(box, broker, work)

    run_state_machine_as_test(OnThisDatabase, settings=thorough(40, stateful_step_count=40))
