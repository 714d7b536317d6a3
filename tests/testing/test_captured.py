"""outbox.testing.capture and the assertions: what was emitted and sent, as the table has it."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from unittest.mock import ANY
from uuid import UUID

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker

import outbox
from outbox import testing
from outbox.core import Outbox
from outbox.testing.rolled_back import rolled_back
from tests.conftest import Configure
from tests.support.encryption import NEW


class TestCapture:
    def test_it_holds_what_is_emitted_inside_and_nothing_from_before(self, box: Outbox) -> None:
        with rolled_back(box.database):
            outbox.emit("Order", 1, "order.placed")
            with testing.capture() as events:
                outbox.emit("Order", 2, "order.placed", {"total": 3})
                assert [event.aggregate_id for event in events] == ["2"]
                outbox.emit_many([("Order", 3, "order.placed"), ("Order", 4, "order.paid")])
            outbox.emit("Order", 5, "order.placed")
        assert [event.aggregate_id for event in events] == ["2", "3", "4"]
        assert events.types == ["order.placed", "order.placed", "order.paid"]
        assert (len(events), events[0].payload, [each.aggregate_id for each in events[1:]]) == (
            3,
            {"total": 3},
            ["3", "4"],
        )

    def test_what_is_rolled_back_or_cancelled_was_not_emitted(self, box: Outbox) -> None:
        with rolled_back(box.database), testing.capture() as events:
            with box.database.atomic() as savepoint:
                outbox.emit("Order", 1, "order.placed")
                savepoint.rollback()
            outbox.cancel(outbox.emit("Order", 2, "order.placed"))
            outbox.emit("Order", 3, "order.placed")
        assert [event.aggregate_id for event in events] == ["3"]

    def test_blocks_nest(self, box: Outbox) -> None:
        with testing.capture() as outer:
            outbox.emit("Order", 1, "order.placed")
            with testing.capture() as inner:
                outbox.emit("Order", 2, "order.paid")
                testing.assert_nothing_emitted("order.placed")
        assert (outer.types, inner.types) == (["order.placed", "order.paid"], ["order.paid"])

    def test_encrypted_payloads_are_readable(self, configure: Configure) -> None:
        configure(encryption_keys=NEW.text)
        with testing.capture() as events:
            outbox.emit("Order", 1, "order.placed", {"card": "4242"})
        assert events[0].payload == {"card": "4242"}

    def test_jobs_are_there_beside_the_events(self, box: Outbox) -> None:
        broker = StubBroker()
        dramatiq.set_broker(broker)

        @dramatiq.actor
        def refund(order_id: int, *, reason: str) -> None: ...

        outbox.transactional(broker, databases=[box.database])
        with rolled_back(box.database), testing.capture() as sent:
            refund.send(7, reason="broken")
            outbox.send(refund, 8, reason="late")
            outbox.emit("Order", 7, "order.placed")
        assert ([job.event_type for job in sent.jobs], [event.event_type for event in sent.events]) == (
            ["refund", "refund"],
            ["order.placed"],
        )
        testing.assert_sent(refund, args=[7], kwargs={"reason": "broken"}, within=sent)
        testing.assert_sent("refund", count=2, within=sent)
        with pytest.raises(AssertionError, match=r"payload.args\[0\]: expected 9, got 7"):
            testing.assert_sent(refund, args=[9], within=sent)


@dataclass
class Placed:
    total: Decimal


class TestAssertEmitted:
    @pytest.fixture(autouse=True)
    def _emitted(self, box: Outbox) -> None:
        outbox.emit(
            "Order",
            7,
            "order.placed",
            {
                "total": Decimal("20.00"),
                "lines": [{"sku": "a", "count": 1}, {"sku": "b"}],
                "paid": True,
                "id": UUID(int=1),
            },
            headers={"source": "web"},
            tenant_id="acme",
            ordering_key="Order:7",
        )

    @pytest.mark.parametrize(
        "expected",
        [
            {},
            {"aggregate": ("Order", 7)},
            {"payload": {"total": Decimal("20.00")}},
            {"payload": Placed(Decimal("20.00"))},
            {"payload": {"lines": [{"sku": "a"}, {"sku": "b"}], "id": UUID(int=1), "total": ANY}},
            {
                "headers": {"source": "web"},
                "tenant_id": "acme",
                "ordering_key": "Order:7",
                "idempotency_key": "Order:7",
            },
            {"count": 1},
        ],
    )
    def test_a_part_is_enough(self, expected: dict[str, object]) -> None:
        found = testing.assert_emitted("order.placed", **expected)  # type: ignore[arg-type]
        assert found.aggregate_id == "7"

    @pytest.mark.parametrize(
        ("expected", "difference"),
        [
            ({"aggregate": ("Order", 8)}, "aggregate: expected Order:8, got Order:7"),
            ({"payload": {"total": 20}}, "payload.total: expected 20, got '20.00'"),
            ({"payload": {"coupon": "x"}}, "payload.coupon: expected 'x', got nothing"),
            ({"payload": {"paid": 1}}, "payload.paid: expected 1, got True"),
            ({"payload": {"lines": [{"sku": "a"}]}}, "payload.lines: expected [{'sku': 'a'}], got [{"),
            ({"payload": {"lines": [ANY, {"sku": "c"}]}}, "payload.lines[1].sku: expected 'c', got 'b'"),
            ({"headers": {"source": "app"}}, "headers.source: expected 'app', got 'web'"),
            ({"tenant_id": "other"}, "tenant_id: expected 'other', got 'acme'"),
            ({"count": 2}, "(1 instead of 2)"),
        ],
    )
    def test_a_failure_says_what_differs(self, expected: dict[str, object], difference: str) -> None:
        with pytest.raises(AssertionError, match=re.escape(difference)):
            testing.assert_emitted("order.placed", **expected)  # type: ignore[arg-type]

    def test_the_nearest_come_first(self) -> None:
        outbox.emit("Order", 8, "order.placed", {"total": 21})
        outbox.emit("Order", 7, "order.paid", {"total": 21})
        with pytest.raises(AssertionError) as caught:
            testing.assert_emitted("order.placed", aggregate=("Order", 7), payload={"total": 21})
        assert str(caught.value).splitlines() == [
            "This was not emitted:",
            "  order.placed  Order:7  payload={'total': 21}",
            "3 were emitted; nearest:",
            "  order.placed  Order:7",
            "      payload.total: expected 21, got '20.00'",
            "  order.placed  Order:8",
            "      aggregate: expected Order:7, got Order:8",
            "  order.paid  Order:7",
            "      type: expected 'order.placed', got 'order.paid'",
        ]

    def test_without_any_event_it_says_so(self) -> None:
        with testing.capture(), pytest.raises(AssertionError, match="Nothing was emitted at all"):
            testing.assert_emitted("order.placed")

    def test_a_count_of_none_is_another_assertion(self) -> None:
        with pytest.raises(ValueError, match="assert_nothing_emitted"):
            testing.assert_emitted("order.placed", count=0)


class TestAssertNothingEmitted:
    def test_it_fails_with_what_there_is(self, box: Outbox) -> None:
        testing.assert_nothing_emitted()
        outbox.emit("Order", 7, "order.placed", {"total": 20})
        testing.assert_nothing_emitted("user.*")
        with pytest.raises(AssertionError, match=r"order.placed  Order:7  payload=\{'total': 20\}"):
            testing.assert_nothing_emitted("order.*")


class TestMakeEvent:
    def test_it_is_as_a_handler_gets_it(self) -> None:
        at = datetime(2030, 1, 1, tzinfo=UTC)
        event = testing.make_event(
            "order.placed",
            {"total": Decimal("9.90")},
            aggregate=("Order", 7),
            attempt=3,
            headers={"a": 1},
            correlation_id="c",
            tenant_id="t",
            idempotency_key="k",
            ordering_key="o",
            max_attempts=4,
            id=UUID(int=5),
            created_at=at,
        )
        assert (event.event_type, event.aggregate_type, event.aggregate_id) == ("order.placed", "Order", "7")
        assert (event.payload, event.body, event.headers) == ({"total": "9.90"}, b'{"total":"9.90"}', {"a": 1})
        assert (event.attempt, event.max_attempts, event.id, event.created_at) == (3, 4, UUID(int=5), at)
        assert (event.correlation_id, event.tenant_id, event.idempotency_key, event.ordering_key) == (
            "c",
            "t",
            "k",
            "o",
        )

    def test_the_rest_is_made_up(self) -> None:
        event = testing.make_event("order.placed")
        assert (event.payload, event.attempt, event.kind) == ({}, 1, "event")
        assert datetime.now(UTC) - event.created_at < timedelta(minutes=1)

    def test_what_emit_refuses_is_refused(self) -> None:
        with pytest.raises(outbox.InvalidEvent, match="payload"):
            testing.make_event("order.placed", {"at": datetime(2030, 1, 1)})  # noqa: DTZ001  (that is the mistake)
