"""Whether the message brokers among the destinations can be reached."""

from collections.abc import Sequence

import pytest

import outbox
from outbox.admin.doctor.check import OK, PROBLEM
from outbox.core import Outbox
from outbox.destinations.outcome import Outcome
from outbox.events.event import Event
from tests.admin.doctor.findings import advice_of, finding_of


@pytest.fixture
def url(sqlite_url: str) -> str:
    """The same on every database."""
    return sqlite_url


class Broker(outbox.Bus[object]):
    error: Exception | None = None
    closed = 0

    def connect(self, seconds: float) -> object:
        if self.error is not None:
            raise self.error
        return object()

    def publish(self, connection: object, events: Sequence[Event], seconds: float) -> list[tuple[Event, Outcome]]:
        raise AssertionError("the doctor publishes nothing")

    def disconnect(self, connection: object) -> None:
        self.closed += 1


def test_one_that_can_be_reached_is_fine_and_the_connection_is_closed(box: Outbox) -> None:
    broker = Broker("bus")
    box.registry.add(broker)
    found = finding_of(box, "brokers")
    assert (found.level, found.what, broker.closed) == (OK, "bus: the Broker can be reached.", 1)


def test_one_that_can_not_be_reached_is_a_problem(box: Outbox) -> None:
    broker = Broker("bus")
    broker.error = ConnectionRefusedError("refused")
    box.registry.add(broker)
    found = finding_of(box, "brokers")
    assert found.level == PROBLEM
    assert found.what == (
        "bus: the Broker can't be used: ConnectionRefusedError: refused. Its events wait, and lose no attempt."
    )
    assert "Start the broker" in advice_of(found)


def test_one_that_lacks_what_events_are_published_to_is_a_problem(box: Outbox) -> None:
    class WithoutTopic(Broker):
        def check_connection(self, connection: object, seconds: float) -> None:
            raise LookupError("no topic")

    box.registry.add(WithoutTopic("bus"))
    found = finding_of(box, "brokers")
    assert found.level == PROBLEM
    assert "bus: the WithoutTopic can't be used: LookupError: no topic." in found.what
    assert "create what is missing" in advice_of(found)


def test_without_any_nothing_is_wrong(box: Outbox) -> None:
    assert finding_of(box, "brokers").level == OK
