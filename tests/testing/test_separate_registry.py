"""outbox.testing.sandbox: a registry of its own, in which nothing leaves the process."""

from collections.abc import Iterator

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker

import outbox
from outbox import testing
from outbox.core import Outbox
from outbox.dramatiq import ActorDestination
from outbox.dramatiq.in_process_broker import InProcessBroker
from outbox.errors import RegistrationError
from outbox.storage.models import DELIVERED
from outbox.testing.separate_registry import RecordingDestination
from tests.conftest import Configure
from tests.support.table import emit, emit_one, statuses, stored

SECRET = "whsec_" + "A" * 44


def webhook(name: str = "crm") -> outbox.Webhook:
    return outbox.Webhook(name, "https://crm.invalid/hook", secret=SECRET, events=["order.*"])


class TestRecorders:
    def test_what_would_leave_the_process_is_recorded(self, box: Outbox) -> None:
        called: list[outbox.Event] = []
        outbox.handler("order.placed", name="handler")(called.append)
        outbox.add_destination(webhook())
        with testing.sandbox():
            event = emit_one(payload={"total": 20})
            assert testing.deliver() == 1
            (got,) = testing.recorded("crm")
            assert (got.id, got.payload, got.attempt) == (event.id, {"total": 20}, 1)
            assert [each.id for each in called] == [event.id]

    def test_so_is_what_is_registered_inside_or_named_by_settings(self, configure: Configure) -> None:
        with testing.sandbox():
            outbox.add_destination(webhook())
            box = configure(webhook_url="https://configured.invalid", webhook_secret=SECRET)
            emit(1)
            testing.deliver()
            assert len(testing.recorded("crm")) == len(testing.recorded("webhook")) == 1
            assert {type(each) for each in box.registry.destinations.values()} == {RecordingDestination}

    def test_handlers_that_are_named_are_recorded(self, box: Outbox) -> None:
        @outbox.handler("order.placed", name="slack")
        def post_to_slack(event: outbox.Event) -> None:
            raise AssertionError("this would post")

        with testing.sandbox(record=[post_to_slack]):
            emit(1)
            testing.deliver()
            assert len(testing.recorded(post_to_slack)) == len(testing.recorded("slack")) == 1

    def test_destinations_that_are_kept_are_called(self, box: Outbox) -> None:
        kept = webhook()
        outbox.add_destination(kept)
        with testing.sandbox(keep=["crm"]):
            assert box.registry.destinations["crm"] is kept
            with pytest.raises(RegistrationError, match="'crm' is not recorded"):
                testing.recorded("crm")

    def test_order_is_as_that_of_the_real_one(self, box: Outbox) -> None:
        outbox.add_destination(webhook())
        with testing.sandbox():
            events = emit(3, ordering_key="one")
            testing.deliver()
            assert [event.id for event in testing.recorded("crm")] == [event.id for event in events]


class TestJobs:
    @pytest.fixture(autouse=True)
    def _broker_of_before(self) -> Iterator[None]:
        before = dramatiq.broker.global_broker
        yield
        dramatiq.broker.global_broker = before

    def test_on_a_stub_broker_they_are_enqueued(self, box: Outbox) -> None:
        broker = StubBroker()
        dramatiq.set_broker(broker)
        outbox.transactional(broker, databases=[box.database])

        @dramatiq.actor
        def refund(order_id: int) -> None: ...

        with testing.sandbox(), box.database.atomic():
            refund.send(7)
            assert broker.queues["default"].qsize() == 0
            testing.assert_sent(refund, args=[7])
            testing.deliver()
            assert broker.queues["default"].qsize() == 1
            assert statuses() == {DELIVERED: 1}

    def test_on_any_other_broker_they_are_recorded(self, box: Outbox) -> None:
        dramatiq.set_broker(InProcessBroker())

        @dramatiq.actor
        def refund(order_id: int) -> None: ...

        with testing.sandbox():
            outbox.send(refund, 7)
            assert testing.deliver() == 1
            (job,) = testing.recorded("dramatiq")
            assert (job.event_type, job.payload["args"]) == ("refund", [7])

    def test_events_for_an_actor_are_recorded(self, box: Outbox) -> None:
        dramatiq.set_broker(StubBroker())

        @dramatiq.actor
        def index(event: dict[str, object]) -> None: ...

        outbox.add_destination(ActorDestination(index, events=["order.*"], name="index"))
        with testing.sandbox():
            emit(1)
            testing.deliver()
            assert len(testing.recorded("index")) == 1


class TestAfterwards:
    def test_everything_is_as_before(self, box: Outbox) -> None:
        outbox.add_destination(webhook())
        outbox.ignore("user.*")
        registry = box.registry
        before = dict(registry.destinations)
        with testing.sandbox():
            outbox.handler("order.placed", name="inner")(print)
            outbox.ignore("order.*")
            outbox.redact("*")(lambda _, payload: "hidden")
        assert dict(registry.destinations) == before
        assert (registry.ignores("user.created"), registry.ignores("order.placed")) == (True, False)
        assert [each.name for each in registry.wanting("order.placed")] == ["crm"]
        assert registry.redactions.displayed("order.placed", {"a": 1}) == {"a": 1}
        outbox.add_destination(webhook("real"))
        assert type(registry.destinations["real"]) is outbox.Webhook

    def test_nothing_is_recorded_outside(self, box: Outbox) -> None:
        with pytest.raises(RegistrationError, match=r"outside of outbox.testing.sandbox\(\)"):
            testing.recorded("crm")

    def test_an_inner_sandbox_sees_the_recorders_of_the_outer_one(self, box: Outbox) -> None:
        outbox.add_destination(webhook())
        with testing.sandbox():
            event = emit_one()
            testing.deliver()
            with testing.sandbox():
                assert stored(event).status == DELIVERED
                assert len(testing.recorded("crm")) == 1
            assert len(testing.recorded("crm")) == 1
