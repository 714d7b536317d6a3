"""RabbitMQ as a destination, with a real server: what is published, what is confirmed, and what goes wrong."""

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import outbox
from outbox.buses.rabbit_connection import SHORT_TEXT
from outbox.core import Outbox
from outbox.destinations.outcome import DELIVERED_OUTCOME, Failed, Outcome, Retry
from outbox.destinations.protocol import Lease
from outbox.errors import Unavailable
from outbox.events.event import Event
from tests.rabbitmq.server import LARGEST_MESSAGE, RESTRICTED, RabbitmqServer
from tests.rabbitmq.topology import Topology
from tests.support.servers import wait_until
from tests.support.table import claimed, deliver_all, emit, emit_one, error_of, let_pass, statuses
from tests.support.tcp_proxy import TcpProxy

# Long enough on a busy machine; where a timeout is meant to pass, the test has a shorter one.
SECONDS = 30.0


@pytest.fixture
def url(sqlite_url: str) -> str:
    """The same on every database."""
    return sqlite_url


@pytest.fixture
def topology(rabbitmq: RabbitmqServer) -> Topology:
    return Topology(rabbitmq)


@pytest.fixture
def proxy(rabbitmq: RabbitmqServer) -> Iterator[TcpProxy]:
    with TcpProxy(rabbitmq.port) as proxy:
        yield proxy


class Make:
    def __init__(self) -> None:
        self.made: list[outbox.Rabbit] = []

    def __call__(self, where: RabbitmqServer | TcpProxy, exchange: str, query: str = "", **options: Any) -> Any:
        url = f"amqp://guest:guest@127.0.0.1:{where.port}/%2F{query}"
        options = {"timeout": SECONDS} | options
        self.made.append(outbox.Rabbit("bus", url=url, exchange=exchange, **options))
        return self.made[-1]


@pytest.fixture
def make() -> Iterator[Make]:
    make = Make()
    yield make
    for each in make.made:
        each.close()


def deliver(bus: outbox.Rabbit, events: Sequence[Event]) -> list[Outcome]:
    found = dict(bus.deliver(iter(events), Lease.lasting(60)))
    return [found[event] for event in events]


def events_of(box: Outbox) -> list[Event]:
    return sorted(claimed(box).events, key=lambda event: event.seq)


class TestAMessage:
    @pytest.fixture
    def event(self, box: Outbox) -> Event:
        emit_one(
            "user.created",
            aggregate_type="Üser",
            aggregate_id="7/ß",
            payload={"name": "Žofia ☃", "zeros": 1.50},
            headers={"n": [1]},
            correlation_id="çorr",
            tenant_id="ténant",
            ordering_key="user:7",
        )
        (event,) = events_of(box)
        return event

    def test_has_the_attributes_as_headers_and_the_payload_to_the_byte(
        self, rabbitmq: RabbitmqServer, topology: Topology, make: Make, event: Event
    ) -> None:
        assert deliver(make(rabbitmq, topology.exchange), [event]) == [DELIVERED_OUTCOME]
        ((method, properties, body),) = topology.take()
        assert body == event.body
        assert properties.headers == {
            "id": str(event.id),
            "type": "user.created",
            "aggregate_type": "Üser",
            "aggregate_id": "7/ß",
            "time": event.created_at.isoformat(),
            "tenant_id": "ténant",
            "correlation_id": "çorr",
            "ordering_key": "user:7",
            "seq": str(event.seq),
            "headers": '{"n":[1]}',
        }
        assert (properties.delivery_mode, properties.message_id, properties.type) == (2, str(event.id), "user.created")
        assert (properties.content_type, properties.correlation_id) == ("application/json", "çorr")
        assert properties.timestamp == int(event.created_at.timestamp())
        assert (method.routing_key, method.exchange) == ("user.created", topology.exchange)

    @pytest.mark.parametrize("format", ["json", "cloudevents", "cloudevents-binary"])
    def test_may_have_another_format(
        self, rabbitmq: RabbitmqServer, topology: Topology, make: Make, event: Event, format: str
    ) -> None:
        bus = make(rabbitmq, topology.exchange, format=format, source="/users", routing_key="{tenant_id}.{event_type}")
        assert deliver(bus, [event]) == [DELIVERED_OUTCOME]
        ((method, properties, body),) = topology.take()
        assert method.routing_key == "ténant.user.created"
        if format == "cloudevents-binary":
            assert (body, properties.content_type) == (event.body, "application/json")
            assert properties.headers["cloudEvents_id"] == str(event.id)
            assert properties.headers["cloudEvents_source"] == "/users"
            assert "cloudEvents_datacontenttype" not in properties.headers
        else:
            read = json.loads(body)
            assert (read["id"], read["data"]) == (str(event.id), event.payload)
            assert ("specversion" in read) == (format == "cloudevents")

    def test_lacks_a_property_that_would_be_too_long_for_amqp(
        self, box: Outbox, rabbitmq: RabbitmqServer, topology: Topology, make: Make
    ) -> None:
        emit_one("ü" * 100, correlation_id="☃" * 100)
        bus = make(rabbitmq, topology.exchange, routing_key="{aggregate_type}")
        assert deliver(bus, events_of(box)) == [DELIVERED_OUTCOME]
        ((_, properties, _),) = topology.take()
        assert (properties.type, properties.correlation_id) == ("ü" * 100, None)
        assert properties.headers["correlation_id"] == "☃" * 100


class TestABatch:
    def test_is_confirmed_as_one_and_is_in_the_queue_in_order(
        self, box: Outbox, rabbitmq: RabbitmqServer, topology: Topology, make: Make
    ) -> None:
        emit(100)
        events = events_of(box)
        bus = make(rabbitmq, topology.exchange)
        assert deliver(bus, events[:50]) == [DELIVERED_OUTCOME] * 50
        assert deliver(bus, events[50:]) == [DELIVERED_OUTCOME] * 50
        ids = [properties.message_id for _, properties, _ in topology.take()]
        assert ids == [str(event.id) for event in events]

    def test_is_written_at_once_and_not_frame_by_frame(
        self, box: Outbox, rabbitmq: RabbitmqServer, topology: Topology, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bus = make(rabbitmq, topology.exchange)
        bus.check()
        transport, sizes = bus._shared._connection._connection._transport, list[int]()
        write = transport.write

        def counted(data: bytes) -> None:
            sizes.append(len(data))
            write(data)

        monkeypatch.setattr(transport, "write", counted)
        emit(100)
        assert deliver(bus, events_of(box)) == [DELIVERED_OUTCOME] * 100
        assert len(topology.take()) == 100
        assert sum(sizes) > 30_000
        assert len(sizes) <= 5  # one of them, and what opens a channel

    def test_that_is_larger_than_one_write_arrives_as_it_was_published(
        self, box: Outbox, rabbitmq: RabbitmqServer, topology: Topology, make: Make
    ) -> None:
        for number in range(40):
            emit_one(payload={"text": str(number) * (LARGEST_MESSAGE // 4)})
        events = events_of(box)
        assert deliver(make(rabbitmq, topology.exchange), events) == [DELIVERED_OUTCOME] * 40
        assert topology.take_bodies() == [event.body for event in events]

    def test_is_stored_by_a_quorum_queue(self, box: Outbox, rabbitmq: RabbitmqServer, make: Make) -> None:
        topology = Topology(rabbitmq, queue_type="quorum")
        outbox.add_destination(make(rabbitmq, topology.exchange))
        emit(20)
        deliver_all(box)
        assert statuses() == {"delivered": 20}
        assert len(topology.take()) == 20

    def test_of_several_threads_goes_over_one_connection(
        self, box: Outbox, topology: Topology, proxy: TcpProxy, make: Make
    ) -> None:
        emit(80)
        events = events_of(box)
        bus = make(proxy, topology.exchange)
        with ThreadPoolExecutor(4) as executor:
            batches = [events[start::4] for start in range(4)]
            assert list(executor.map(lambda batch: deliver(bus, batch), batches)) == [[DELIVERED_OUTCOME] * 20] * 4
        assert proxy.connections == 1
        assert len(topology.take()) == 80

    def test_of_a_forked_child_goes_over_its_own_connection(
        self, box: Outbox, topology: Topology, proxy: TcpProxy, make: Make
    ) -> None:
        emit(3)
        events = events_of(box)
        bus = make(proxy, topology.exchange)
        deliver(bus, events[:1])
        child = os.fork()
        if child == 0:  # pragma: no cover
            os._exit(0 if deliver(bus, events[1:2]) == [DELIVERED_OUTCOME] else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert deliver(bus, events[2:]) == [DELIVERED_OUTCOME]
        assert proxy.connections == 2
        assert len(topology.take()) == 3


class TestAMessageThatIsRefused:
    def test_is_tried_again_with_the_reason_if_no_queue_gets_it_and_the_others_are_delivered(
        self, box: Outbox, rabbitmq: RabbitmqServer, make: Make
    ) -> None:
        topology = Topology(rabbitmq, "order.*")
        for event_type in ("order.placed", "user.created", "order.paid"):
            emit_one(event_type)
        first, second, third = deliver(make(rabbitmq, topology.exchange), events_of(box))
        assert (first, third) == (DELIVERED_OUTCOME, DELIVERED_OUTCOME)
        assert isinstance(second, Retry)
        assert "returned the message: 312 NO_ROUTE" in second.error
        assert "'user.created'" in second.error
        assert len(topology.take()) == 2

    def test_is_dropped_by_the_server_without_mandatory(
        self, box: Outbox, rabbitmq: RabbitmqServer, make: Make
    ) -> None:
        topology = Topology(rabbitmq, "order.*")
        emit_one("user.created")
        assert deliver(make(rabbitmq, topology.exchange, mandatory=False), events_of(box)) == [DELIVERED_OUTCOME]

    def test_waits_while_a_queue_is_full(self, box: Outbox, rabbitmq: RabbitmqServer, make: Make) -> None:
        topology = Topology(rabbitmq, max_length=2, overflow="reject-publish")
        outbox.add_destination(make(rabbitmq, topology.exchange))
        events = emit(5)
        deliver_all(box)
        found = statuses()
        assert found["pending"] >= 1
        waiting = [event for event in events if outbox.OutboxEvent.get_by_id(event.id).status == "pending"]
        assert "RabbitMQ rejected the message: a queue that it is routed to is full" in error_of(waiting[0])
        assert {outbox.OutboxEvent.get_by_id(event.id).attempts for event in waiting} == {0}
        taken = len(topology.take())
        let_pass(hours=1)
        deliver_all(box)
        assert taken + len(topology.take()) >= found["delivered"] + 1

    def test_fails_if_it_is_too_large_and_the_others_are_delivered(
        self, box: Outbox, rabbitmq: RabbitmqServer, topology: Topology, make: Make
    ) -> None:
        emit(2)
        emit_one(payload={"text": "x" * (LARGEST_MESSAGE + 1)})
        emit(2)
        *others, large = sorted(events_of(box), key=lambda event: len(event.body))
        batch = [*others[:2], large, *others[2:]]
        outcomes = deliver(make(rabbitmq, topology.exchange), batch)
        assert outcomes[:2] + outcomes[3:] == [DELIVERED_OUTCOME] * 4
        assert isinstance(outcomes[2], Failed)
        assert "406 PRECONDITION_FAILED" in outcomes[2].error
        assert {properties.message_id for _, properties, _ in topology.take()} == {str(each.id) for each in others}

    def test_fails_if_its_headers_do_not_fit_in_a_frame_and_the_others_are_delivered(
        self, box: Outbox, rabbitmq: RabbitmqServer, topology: Topology, make: Make
    ) -> None:
        """RabbitMQ would end the connection, and with it every batch that the event is in."""
        emit(1)
        emit_one(headers={"text": "x" * 100_000})
        emit_one(headers={"text": "ü" * 100_000})
        first, fits, large = deliver(make(rabbitmq, topology.exchange), events_of(box))
        assert (first, fits) == (DELIVERED_OUTCOME, DELIVERED_OUTCOME)
        assert isinstance(large, Failed)
        assert "its headers have 200,2" in large.error
        assert len(topology.take()) == 2

    def test_is_tried_again_if_the_user_may_not_publish_with_its_routing_key(
        self, box: Outbox, rabbitmq: RabbitmqServer, topology: Topology
    ) -> None:
        for event_type in ("order.placed", "secret.told", "order.paid"):
            emit_one(event_type)
        url = f"amqp://{RESTRICTED}:{RESTRICTED}@127.0.0.1:{rabbitmq.port}/%2F"
        bus = outbox.Rabbit("bus", url=url, exchange="amq.topic", timeout=SECONDS, mandatory=False)
        first, second, third = deliver(bus, events_of(box))
        bus.close()
        assert (first, third) == (DELIVERED_OUTCOME, DELIVERED_OUTCOME)
        assert isinstance(second, Retry)
        assert "403 ACCESS_REFUSED" in second.error

    def test_waits_if_there_is_no_such_exchange(self, box: Outbox, rabbitmq: RabbitmqServer, make: Make) -> None:
        emit(3)
        for outcome in deliver(make(rabbitmq, "nowhere"), events_of(box)):
            assert isinstance(outcome, Unavailable)
            assert "404 NOT_FOUND - no exchange 'nowhere'" in str(outcome)

    def test_is_found_by_the_doctor_before_if_there_is_no_such_exchange(
        self, rabbitmq: RabbitmqServer, topology: Topology, make: Make
    ) -> None:
        make(rabbitmq, topology.exchange).check()
        make(rabbitmq, "").check()
        with pytest.raises(Exception, match="NOT_FOUND - no exchange 'nowhere'"):
            make(rabbitmq, "nowhere").check()
        url = f"amqp://{RESTRICTED}:{RESTRICTED}@127.0.0.1:{rabbitmq.port}/%2F"
        bus = outbox.Rabbit("bus", url=url, exchange="amq.topic", timeout=SECONDS)
        bus.check()  # a user who may only publish may look, too
        bus.close()

    def test_fails_if_its_routing_key_is_too_long_for_amqp(
        self, box: Outbox, rabbitmq: RabbitmqServer, topology: Topology, make: Make
    ) -> None:
        emit_one(aggregate_id="x" * 100)
        emit_one(aggregate_id="ü" * 100)
        bus = make(rabbitmq, topology.exchange, routing_key="{aggregate_id}." + "{aggregate_type}" * 12)
        good, bad = deliver(bus, events_of(box))
        assert good == DELIVERED_OUTCOME
        assert isinstance(bad, Failed)
        assert f"longer than {SHORT_TEXT} bytes" in bad.error


class TestAServerThatCanNotBeReached:
    @pytest.mark.parametrize("url", ["sqlite"], indirect=True)
    def test_costs_no_attempt_and_gets_its_events_later(
        self, box: Outbox, topology: Topology, proxy: TcpProxy, make: Make
    ) -> None:
        outbox.add_destination(make(proxy, topology.exchange))
        emit(3)
        proxy.refuse()
        deliver_all(box)
        assert statuses() == {"pending": 3}
        assert {row.attempts for row in outbox.OutboxEvent.select()} == {0}
        assert all("could not connect" in str(row.error_message) for row in outbox.OutboxEvent.select())
        proxy.go_on()
        let_pass(hours=1)
        deliver_all(box)
        assert statuses() == {"delivered": 3}
        assert len(topology.take()) == 3

    def test_refuses_a_wrong_password_which_is_never_shown(
        self, box: Outbox, rabbitmq: RabbitmqServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        emit(1)
        bus = outbox.Rabbit("bus", url=f"amqp://guest:hush@127.0.0.1:{rabbitmq.port}/", exchange="x", timeout=SECONDS)
        (outcome,) = deliver(bus, events_of(box))
        assert isinstance(outcome, Unavailable)
        assert "ACCESS_REFUSED" in str(outcome)
        assert "hush" not in str(outcome) + repr(bus) + caplog.text

    def test_of_several_is_passed_over(self, box: Outbox, rabbitmq: RabbitmqServer, topology: Topology) -> None:
        emit(1)
        urls = ["amqp://guest:guest@127.0.0.1:1/", rabbitmq.url]
        bus = outbox.Rabbit("bus", url=urls, exchange=topology.exchange, timeout=SECONDS)
        assert deliver(bus, events_of(box)) == [DELIVERED_OUTCOME]
        bus.close()

    def test_that_hangs_holds_a_batch_for_no_longer_than_its_timeout(
        self, box: Outbox, topology: Topology, proxy: TcpProxy, make: Make
    ) -> None:
        emit(2)
        first, second = events_of(box)
        bus = make(proxy, topology.exchange)
        deliver(bus, [first])
        bus.timeout = 0.3
        proxy.stop()
        (outcome,) = deliver(bus, [second])
        assert isinstance(outcome, Unavailable)
        assert "not confirmed within 0.3 s" in str(outcome)
        (outcome,) = deliver(bus, [second])  # nor does a server that hangs while it is connected to
        assert isinstance(outcome, Unavailable)
        assert "could not connect" in str(outcome)
        bus.timeout = SECONDS
        proxy.go_on()
        assert deliver(bus, [second]) == [DELIVERED_OUTCOME]


class TestAConnectionThatIsLost:
    def test_is_opened_again(self, box: Outbox, topology: Topology, proxy: TcpProxy, make: Make) -> None:
        emit(2)
        first, second = events_of(box)
        bus = make(proxy, topology.exchange)
        deliver(bus, [first])
        proxy.cut()
        assert wait_until(lambda: not bus._shared._connection.is_open)
        assert deliver(bus, [second]) == [DELIVERED_OUTCOME]
        assert proxy.connections == 2

    def test_before_the_confirmation_came_leaves_the_event_to_be_published_again_with_the_same_id(
        self, box: Outbox, topology: Topology, proxy: TcpProxy, make: Make
    ) -> None:
        bus = make(proxy, topology.exchange, timeout=0.5)
        outbox.add_destination(bus)
        bus.check()
        proxy.stop_replies()
        (event,) = emit(1)
        deliver_all(box)
        assert statuses() == {"pending": 1}
        proxy.cut()
        proxy.go_on()
        bus.timeout = SECONDS
        let_pass(hours=1)
        deliver_all(box)
        assert statuses() == {"delivered": 1}
        assert {properties.message_id for _, properties, _ in topology.take()} == {str(event.id)}

    def test_is_kept_by_heartbeats_while_there_is_nothing_to_publish(
        self, box: Outbox, topology: Topology, proxy: TcpProxy, make: Make
    ) -> None:
        emit(2)
        first, second = events_of(box)
        bus = make(proxy, topology.exchange, "?heartbeat=1")
        deliver(bus, [first])
        before = proxy.sent
        assert wait_until(lambda: proxy.sent >= before + 4)
        assert deliver(bus, [second]) == [DELIVERED_OUTCOME]
        assert proxy.connections == 1

    def test_again_and_again_loses_no_event_and_changes_no_order_of_a_key(
        self, box: Outbox, topology: Topology, proxy: TcpProxy, make: Make
    ) -> None:
        outbox.add_destination(make(proxy, topology.exchange))
        with box.database.atomic():
            for number in range(20):
                for key in "abc":
                    emit_one(aggregate_id=str(number), ordering_key=key)
        for _ in range(10):
            proxy.cut()
            box.process_pending_events(15)
            let_pass(hours=1)
        deliver_all(box)
        assert statuses() == {"delivered": 60}
        seen: dict[str, list[int]] = defaultdict(list)
        for _, properties, _ in topology.take():
            number = int(properties.headers["aggregate_id"])
            if number not in seen[properties.headers["ordering_key"]]:
                seen[properties.headers["ordering_key"]].append(number)
        assert seen == {key: list(range(20)) for key in "abc"}


class TestAServerThatBlocksPublishers:
    def test_is_left_alone_until_it_goes_on(
        self, box: Outbox, rabbitmq: RabbitmqServer, topology: Topology, make: Make
    ) -> None:
        emit(3)
        first, second, third = events_of(box)
        bus = make(rabbitmq, topology.exchange, timeout=2)
        bus.check()
        rabbitmq.control("set_vm_memory_high_watermark", "absolute", "1")
        try:
            (outcome,) = deliver(bus, [first])
            assert isinstance(outcome, Unavailable)
            assert "blocked publishers: low on memory" in str(outcome)
            (outcome,) = deliver(bus, [second])
            assert isinstance(outcome, Unavailable)
        finally:
            rabbitmq.control("set_vm_memory_high_watermark", "0.4")
        bus.timeout = SECONDS
        assert deliver(bus, [third]) == [DELIVERED_OUTCOME]


class TestParameters:
    @pytest.mark.parametrize(
        ("wrong", "text"),
        [
            ({"url": "redis://:hush@localhost"}, "The url of a RabbitMQ can't be read"),
            ({"url": "amqp://me:hush@localhost:port/"}, "The url of a RabbitMQ can't be read"),
            ({"url": "amqp://me:hush@localhost/?heartbeat=often"}, "The url of a RabbitMQ can't be read"),
            ({"url": []}, "must be text, or a list"),
            ({"url": 7}, "must be text, or a list"),
            ({"exchange": "x" * 256}, "exchange must be text"),
            ({"routing_key": "{secret}"}, "routing_key may contain"),
            ({"format": "xml"}, "format must be one of"),
            ({"format": "cloudevents", "source": "a b"}, "source must be"),
        ],
    )
    def test_are_checked_and_no_password_is_repeated(self, wrong: dict[str, Any], text: str) -> None:
        with pytest.raises(outbox.RegistrationError, match=text) as raised:
            outbox.Rabbit("bus", **{"url": "amqp://localhost", "exchange": "events"} | wrong)
        assert "hush" not in str(raised.value)
