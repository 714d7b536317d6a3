"""NATS as a destination, with a real server: what is published, what is acknowledged, and what goes wrong."""

import json
import os
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import unquote

import nats.js.api
import pytest

import outbox
from outbox.core import Outbox
from outbox.destinations.outcome import DELIVERED_OUTCOME, Failed, Outcome, Retry
from outbox.destinations.protocol import Lease
from outbox.errors import Unavailable
from outbox.events.event import Event
from tests.nats.server import LARGEST_MESSAGE, RESTRICTED, NatsServer
from tests.support.servers import wait_until
from tests.support.table import claimed, deliver_all, emit, emit_one, let_pass, statuses
from tests.support.tcp_proxy import TcpProxy

# Long enough on a busy machine; where a timeout is meant to pass, the test has a shorter one.
SECONDS = 30.0


@pytest.fixture
def url(sqlite_url: str) -> str:
    """The same on every database."""
    return sqlite_url


class Stream:
    """A stream of the test's own, with all subjects below a prefix."""

    def __init__(self, server: NatsServer, **config: Any) -> None:
        self._server = server
        name = uuid.uuid4().hex
        self.name, self.prefix = f"stream-{name}", f"events.{name}"
        settings = {"name": self.name, "subjects": [f"{self.prefix}.>"], **config}
        server.ask(lambda client: client.jetstream().add_stream(**settings))

    @property
    def subject(self) -> str:
        return f"{self.prefix}.{{event_type}}"

    def messages(self) -> list[Any]:
        """Return all messages, from the first on."""

        async def read(client: Any) -> list[Any]:
            manager = client.jetstream()
            state = (await manager.stream_info(self.name)).state
            return [await manager.get_msg(self.name, seq) for seq in range(state.first_seq, state.last_seq + 1)]

        return self._server.ask(read)

    def ids(self) -> list[str]:
        return [message.headers["Nats-Msg-Id"] for message in self.messages()]

    def purge(self) -> None:
        self._server.ask(lambda client: client.jetstream().purge_stream(self.name))


@pytest.fixture
def stream(nats_server: NatsServer) -> Stream:
    return Stream(nats_server)


@pytest.fixture
def proxy(nats_server: NatsServer) -> Iterator[TcpProxy]:
    with TcpProxy(nats_server.port) as proxy:
        yield proxy


class Make:
    def __init__(self) -> None:
        self.made: list[outbox.Nats] = []

    def __call__(self, where: NatsServer | TcpProxy, subject: str, **options: Any) -> outbox.Nats:
        servers = f"nats://outbox:outbox@127.0.0.1:{where.port}"
        settings: dict[str, Any] = {"servers": servers, "subject": subject, "timeout": SECONDS} | options
        self.made.append(outbox.Nats("bus", **settings))
        return self.made[-1]


@pytest.fixture
def make() -> Iterator[Make]:
    make = Make()
    yield make
    for each in make.made:
        each.close()


def deliver(bus: outbox.Nats, events: Sequence[Event]) -> list[Outcome]:
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
            aggregate_id="7 / 50%",
            payload={"name": "Žofia ☃", "zeros": 1.50},
            headers={"n": [1]},
            ordering_key="user:7",
        )
        (event,) = events_of(box)
        return event

    def test_has_the_attributes_as_percent_encoded_headers_and_the_payload_to_the_byte(
        self, nats_server: NatsServer, stream: Stream, make: Make, event: Event
    ) -> None:
        assert deliver(make(nats_server, stream.subject), [event]) == [DELIVERED_OUTCOME]
        (message,) = stream.messages()
        assert (message.subject, message.data) == (f"{stream.prefix}.user.created", event.body)
        assert {name: unquote(value) for name, value in message.headers.items()} == {
            "Nats-Msg-Id": str(event.id),
            "Content-Type": "application/json",
            "id": str(event.id),
            "type": "user.created",
            "aggregate_type": "Üser",
            "aggregate_id": "7 / 50%",
            "time": event.created_at.isoformat(),
            "ordering_key": "user:7",
            "seq": str(event.seq),
            "headers": '{"n":[1]}',
        }

    @pytest.mark.parametrize("format", ["json", "cloudevents"])
    def test_may_have_another_format(
        self, nats_server: NatsServer, stream: Stream, make: Make, event: Event, format: str
    ) -> None:
        bus = make(nats_server, stream.subject, format=format, source="/users")
        assert deliver(bus, [event]) == [DELIVERED_OUTCOME]
        (message,) = stream.messages()
        read = json.loads(message.data)
        assert (read["id"], read["data"]) == (str(event.id), event.payload)
        assert ("specversion" in read) == (format == "cloudevents")


class TestABatch:
    def test_is_acknowledged_as_one_and_is_in_the_stream_in_order(
        self, box: Outbox, nats_server: NatsServer, stream: Stream, make: Make
    ) -> None:
        emit(100)
        events = events_of(box)
        bus = make(nats_server, stream.subject)
        assert deliver(bus, events[:50]) == [DELIVERED_OUTCOME] * 50
        assert deliver(bus, events[50:]) == [DELIVERED_OUTCOME] * 50
        assert stream.ids() == [str(event.id) for event in events]

    def test_that_is_published_again_is_stored_once(
        self, box: Outbox, nats_server: NatsServer, stream: Stream, make: Make
    ) -> None:
        emit(5)
        events = events_of(box)
        bus = make(nats_server, stream.subject)
        assert deliver(bus, events) == [DELIVERED_OUTCOME] * 5
        assert deliver(bus, events) == [DELIVERED_OUTCOME] * 5
        assert stream.ids() == [str(event.id) for event in events]

    def test_of_several_threads_goes_over_one_connection(
        self, box: Outbox, stream: Stream, proxy: TcpProxy, make: Make
    ) -> None:
        emit(80)
        events = events_of(box)
        bus = make(proxy, stream.subject)
        with ThreadPoolExecutor(4) as executor:
            batches = [events[start::4] for start in range(4)]
            assert list(executor.map(lambda batch: deliver(bus, batch), batches)) == [[DELIVERED_OUTCOME] * 20] * 4
        assert proxy.connections == 1
        assert len(stream.ids()) == 80

    def test_of_a_forked_child_goes_over_its_own_connection(
        self, box: Outbox, stream: Stream, proxy: TcpProxy, make: Make
    ) -> None:
        emit(3)
        events = events_of(box)
        bus = make(proxy, stream.subject)
        deliver(bus, events[:1])
        child = os.fork()
        if child == 0:  # pragma: no cover
            os._exit(0 if deliver(bus, events[1:2]) == [DELIVERED_OUTCOME] else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert deliver(bus, events[2:]) == [DELIVERED_OUTCOME]
        assert proxy.connections == 2
        assert len(stream.ids()) == 3


class TestAMessageThatIsRefused:
    def test_waits_if_no_stream_has_its_subject_and_the_others_are_delivered(
        self, box: Outbox, nats_server: NatsServer, stream: Stream, make: Make
    ) -> None:
        emit(3)
        first, second, third = events_of(box)
        good = deliver(make(nats_server, stream.subject), [first, third])
        (outcome,) = deliver(make(nats_server, "nowhere.{event_type}"), [second])
        assert good == [DELIVERED_OUTCOME] * 2
        assert isinstance(outcome, Unavailable)
        assert "no stream of JetStream has the subject 'nowhere.order.placed'" in str(outcome)

    def test_waits_while_the_stream_is_full(self, box: Outbox, nats_server: NatsServer, make: Make) -> None:
        stream = Stream(nats_server, max_msgs=2, discard=nats.js.api.DiscardPolicy.NEW)
        outbox.add_destination(make(nats_server, stream.subject))
        emit(3)
        deliver_all(box)
        assert statuses() == {"delivered": 2, "pending": 1}
        (waiting,) = outbox.OutboxEvent.select().where(outbox.OutboxEvent.status == "pending")
        assert "maximum messages exceeded" in str(waiting.error_message)
        assert waiting.attempts == 0
        stream.purge()
        let_pass(hours=1)
        deliver_all(box)
        assert statuses() == {"delivered": 3}

    def test_fails_if_it_is_larger_than_the_server_or_the_stream_allows_and_the_others_are_delivered(
        self, box: Outbox, nats_server: NatsServer, make: Make
    ) -> None:
        stream = Stream(nats_server, max_msg_size=LARGEST_MESSAGE // 2)
        for size in (1, LARGEST_MESSAGE + 1, LARGEST_MESSAGE - 100, LARGEST_MESSAGE // 2 + 1, 2):
            emit_one(payload={"text": "x" * size})
        outcomes = deliver(make(nats_server, stream.subject), events_of(box))
        assert [type(outcome).__name__ for outcome in outcomes] == ["Delivered", *["Failed"] * 3, "Delivered"]
        assert isinstance(outcomes[1], Failed)
        assert f"the server takes {LARGEST_MESSAGE}" in outcomes[1].error
        assert isinstance(outcomes[3], Failed)
        assert "message size exceeds maximum" in outcomes[3].error

    def test_is_measured_as_the_server_does_with_its_headers(
        self, box: Outbox, nats_server: NatsServer, stream: Stream, make: Make
    ) -> None:
        """The server ends the connection, and with it every batch, if a message is one byte too large."""
        emit_one(payload={"text": ""})
        bus = make(nats_server, stream.subject)
        (event,) = events_of(box)
        room = LARGEST_MESSAGE - bus._publication(event).size
        for more in (room, room + 1):
            emit_one(payload={"text": "x" * more})
        outcomes = deliver(bus, events_of(box))
        assert [type(outcome).__name__ for outcome in outcomes] == ["Delivered", "Failed"]

    def test_is_tried_again_if_the_user_may_not_publish_to_its_subject(
        self, box: Outbox, nats_server: NatsServer, make: Make
    ) -> None:
        nats_server.ask(lambda client: client.jetstream().add_stream(name="permitted", subjects=["events.Order.>"]))
        for aggregate_type in ("Order", "secret", "Order"):
            emit_one(aggregate_type=aggregate_type)
        servers = f"nats://{RESTRICTED}:{RESTRICTED}@127.0.0.1:{nats_server.port}"
        bus = make(nats_server, "events.{aggregate_type}.{event_type}", servers=servers)
        first, second, third = deliver(bus, events_of(box))
        assert (first, third) == (DELIVERED_OUTCOME, DELIVERED_OUTCOME)
        assert isinstance(second, Retry)
        assert "ermissions" in second.error

    @pytest.mark.parametrize("id", ["a b", "*", "a..b", "x\r\nPUB y 0\r\n", ">", ".", "\u2028"])
    def test_fails_if_its_subject_is_none_and_nothing_is_sent_in_its_place(
        self, box: Outbox, nats_server: NatsServer, stream: Stream, make: Make, id: str
    ) -> None:
        emit_one(aggregate_id=id)
        emit_one(aggregate_id="good")
        bad, good = deliver(make(nats_server, f"{stream.prefix}.{{aggregate_id}}"), events_of(box))
        assert isinstance(bad, Failed)
        assert "is not a subject of NATS" in bad.error
        assert good == DELIVERED_OUTCOME
        assert len(stream.ids()) == 1


class TestAServerThatCanNotBeReached:
    def test_costs_no_attempt_and_gets_its_events_later(
        self, box: Outbox, stream: Stream, proxy: TcpProxy, make: Make
    ) -> None:
        outbox.add_destination(make(proxy, stream.subject))
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

    def test_refuses_a_wrong_password_which_is_never_shown(
        self, box: Outbox, nats_server: NatsServer, make: Make, caplog: pytest.LogCaptureFixture
    ) -> None:
        emit(1)
        bus = make(nats_server, "events.x", servers=f"nats://outbox:hush@127.0.0.1:{nats_server.port}")
        (outcome,) = deliver(bus, events_of(box))
        assert isinstance(outcome, Unavailable)
        assert "uthorization" in str(outcome)
        assert "hush" not in str(outcome) + repr(bus) + caplog.text

    def test_of_several_is_passed_over(self, box: Outbox, nats_server: NatsServer, stream: Stream, make: Make) -> None:
        emit(1)
        bus = make(nats_server, stream.subject, servers=["nats://outbox:outbox@127.0.0.1:1", nats_server.url])
        assert deliver(bus, events_of(box)) == [DELIVERED_OUTCOME]

    def test_that_hangs_holds_a_batch_for_no_longer_than_its_timeout(
        self, box: Outbox, stream: Stream, proxy: TcpProxy, make: Make
    ) -> None:
        emit(2)
        first, second = events_of(box)
        bus = make(proxy, stream.subject)
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
    def test_is_opened_again(self, box: Outbox, stream: Stream, proxy: TcpProxy, make: Make) -> None:
        emit(2)
        first, second = events_of(box)
        bus: Any = make(proxy, stream.subject)
        deliver(bus, [first])
        proxy.cut()
        assert wait_until(lambda: not bus._shared._connection.is_open)
        assert deliver(bus, [second]) == [DELIVERED_OUTCOME]
        assert proxy.connections == 2

    def test_before_the_acknowledgement_came_has_its_event_stored_once(
        self, box: Outbox, stream: Stream, proxy: TcpProxy, make: Make
    ) -> None:
        bus = make(proxy, stream.subject, timeout=0.5)
        outbox.add_destination(bus)
        bus.check()
        proxy.stop_replies()
        (event,) = emit(1)
        deliver_all(box)
        assert statuses() == {"pending": 1}
        assert stream.ids() == [str(event.id)]
        proxy.cut()
        proxy.go_on()
        bus.timeout = SECONDS
        let_pass(hours=1)
        deliver_all(box)
        assert statuses() == {"delivered": 1}
        assert stream.ids() == [str(event.id)]

    def test_again_and_again_loses_no_event_and_changes_no_order_of_a_key(
        self, box: Outbox, stream: Stream, proxy: TcpProxy, make: Make
    ) -> None:
        outbox.add_destination(make(proxy, stream.subject))
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
        for message in stream.messages():
            seen[message.headers["ordering_key"]].append(int(message.headers["aggregate_id"]))
        assert seen == {key: list(range(20)) for key in "abc"}


def test_a_server_that_was_killed_gets_the_events_that_it_had_not_acknowledged(box: Outbox, make: Make) -> None:
    with NatsServer() as server:
        stream = Stream(server)
        outbox.add_destination(make(server, stream.subject))
        emit(3)
        deliver_all(box)
        server.kill()
        second = emit(3)  # fewer than open the circuit breaker
        deliver_all(box)
        assert statuses() == {"delivered": 3, "pending": 3}
        server.start()
        let_pass(hours=1)
        deliver_all(box)
        assert statuses() == {"delivered": 6}
        assert set(stream.ids()) >= {str(event.id) for event in second}


class TestParameters:
    @pytest.mark.parametrize(
        ("wrong", "text"),
        [
            ({"servers": "http://me:hush@localhost"}, "can't be read as nats"),
            ({"servers": []}, "must be text, or a list"),
            ({"servers": 7}, "must be text, or a list"),
            ({"subject": "{secret}"}, "subject may contain"),
            ({"format": "cloudevents-binary"}, "format must be one of"),
            ({"options": {"allow_reconnect": True, "password": "hush"}}, "options may not have allow_reconnect"),
            ({"options": 7}, "options must be a mapping"),
        ],
    )
    def test_are_checked_and_no_password_is_repeated(self, wrong: dict[str, Any], text: str) -> None:
        with pytest.raises(outbox.RegistrationError, match=text) as raised:
            outbox.Nats("bus", **{"servers": "nats://localhost:4222"} | wrong)
        assert "hush" not in str(raised.value)
