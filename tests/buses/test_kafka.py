"""Kafka as a destination, with librdkafka's mock cluster: what is published, what is reported, and what goes wrong.

The cluster speaks the real protocol over TCP, but is not a real broker: it proves the client's side.
"""

import json
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import KafkaError

import outbox
from outbox.core import Outbox
from outbox.destinations.outcome import DELIVERED_OUTCOME, Failed, Outcome, Retry
from outbox.destinations.protocol import Lease
from outbox.errors import Unavailable
from outbox.events.event import Event
from tests.support.mock_kafka import MockKafka
from tests.support.program import run_python
from tests.support.servers import wait_until
from tests.support.table import claimed, deliver_all, emit, emit_one, let_pass, statuses

# Long enough on a busy machine; where a timeout is meant to pass, the test has a shorter one.
SECONDS = 30.0
# What librdkafka would log to standard error is expected where a test breaks something.
QUIET = {"log_level": 0}


@pytest.fixture
def url(sqlite_url: str) -> str:
    """The same on every database."""
    return sqlite_url


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockKafka]:
    with MockKafka() as kafka:
        yield kafka


@pytest.fixture
def kafka(cluster: MockKafka) -> Iterator[MockKafka]:
    yield cluster
    cluster.delay(0)
    cluster.proxy.go_on()


@pytest.fixture
def topic(kafka: MockKafka) -> str:
    name = f"events-{uuid.uuid4().hex}"
    kafka.create_topic(name)
    return name


class Make:
    def __init__(self) -> None:
        self.made: list[outbox.Kafka] = []

    def __call__(self, kafka: MockKafka, topic: str, **options: Any) -> outbox.Kafka:
        settings: dict[str, Any] = {"timeout": SECONDS, "config": QUIET, "bootstrap_servers": kafka.servers} | options
        self.made.append(outbox.Kafka("bus", topic=topic, **settings))
        return self.made[-1]


@pytest.fixture
def make() -> Iterator[Make]:
    make = Make()
    yield make
    for each in make.made:
        each.close()


def deliver(bus: outbox.Kafka, events: Sequence[Event]) -> list[Outcome]:
    found = dict(bus.deliver(iter(events), Lease.lasting(60)))
    return [found[event] for event in events]


def events_of(box: Outbox) -> list[Event]:
    return sorted(claimed(box).events, key=lambda event: event.seq)


def headers_of(message: Any) -> dict[str, str]:
    return {name: value.decode() for name, value in message.headers()}


class TestAMessage:
    @pytest.fixture
    def event(self, box: Outbox) -> Event:
        emit_one(
            "user.created",
            aggregate_type="Üser",
            aggregate_id="7/ß",
            payload={"name": "Žofia ☃", "zeros": 1.50},
            headers={"n": [1]},
            ordering_key="user:7",
        )
        (event,) = events_of(box)
        return event

    def test_has_the_attributes_as_headers_the_ordering_key_as_key_and_the_payload_to_the_byte(
        self, kafka: MockKafka, topic: str, make: Make, event: Event
    ) -> None:
        assert deliver(make(kafka, topic), [event]) == [DELIVERED_OUTCOME]
        (message,) = kafka.messages(topic)
        assert (message.key(), message.value()) == (b"user:7", event.body)
        assert headers_of(message) == {
            "id": str(event.id),
            "type": "user.created",
            "aggregate_type": "Üser",
            "aggregate_id": "7/ß",
            "time": event.created_at.isoformat(),
            "ordering_key": "user:7",
            "seq": str(event.seq),
            "headers": '{"n":[1]}',
            "content-type": "application/json",
        }

    @pytest.mark.parametrize("format", ["json", "cloudevents", "cloudevents-binary"])
    def test_may_have_another_format(self, kafka: MockKafka, topic: str, make: Make, event: Event, format: str) -> None:
        bus = make(kafka, topic, format=format, source="/users", key="{aggregate_type}/{aggregate_id}")
        assert deliver(bus, [event]) == [DELIVERED_OUTCOME]
        (message,) = kafka.messages(topic)
        headers = headers_of(message)
        assert message.key() == "Üser/7/ß".encode()
        if format == "cloudevents-binary":
            assert (message.value(), headers["content-type"]) == (event.body, "application/json")
            assert (headers["ce_id"], headers["ce_source"]) == (str(event.id), "/users")
            assert headers["ce_subject"] == "Üser/7/ß"
            assert "ce_datacontenttype" not in headers
        else:
            read = json.loads(message.value())
            assert (read["id"], read["data"]) == (str(event.id), event.payload)
            assert headers["content-type"].startswith("application/cloudevents+json") == (format == "cloudevents")

    def test_has_no_key_if_the_event_has_none(self, box: Outbox, kafka: MockKafka, topic: str, make: Make) -> None:
        emit(1)
        assert deliver(make(kafka, topic), events_of(box)) == [DELIVERED_OUTCOME]
        (message,) = kafka.messages(topic)
        assert message.key() is None


class TestABatch:
    def test_is_reported_as_one_and_is_in_the_partition_in_order(
        self, box: Outbox, kafka: MockKafka, topic: str, make: Make
    ) -> None:
        emit(100)
        events = events_of(box)
        bus = make(kafka, topic)
        assert deliver(bus, events[:50]) == [DELIVERED_OUTCOME] * 50
        assert deliver(bus, events[50:]) == [DELIVERED_OUTCOME] * 50
        assert [headers_of(message)["id"] for message in kafka.messages(topic)] == [str(each.id) for each in events]

    def test_of_several_threads_is_reported_to_each_of_them(
        self, box: Outbox, kafka: MockKafka, topic: str, make: Make
    ) -> None:
        emit(80)
        events = events_of(box)
        bus = make(kafka, topic)
        with ThreadPoolExecutor(4) as executor:
            batches = [events[start::4] for start in range(4)]
            assert list(executor.map(lambda batch: deliver(bus, batch), batches)) == [[DELIVERED_OUTCOME] * 20] * 4
        assert len(kafka.messages(topic)) == 80

    def test_of_a_forked_child_is_published_and_the_child_ends(self, kafka: MockKafka, topic: str) -> None:
        # A program of its own: the mock cluster is not part of the process that forks.
        said = run_python(
            "import os, sys, warnings\n"
            "import outbox\n"
            "warnings.filterwarnings('ignore', 'This process .* is multi-threaded', DeprecationWarning)\n"  # 3.12
            "from outbox.destinations.protocol import Lease\n"
            "servers, topic = sys.argv[1:]\n"
            "bus = outbox.Kafka('bus', bootstrap_servers=servers, topic=topic, timeout=30)\n"
            "from tests.support.received_event import event\n"
            "print([str(each) for _, each in bus.deliver(iter([event()]), Lease.lasting(60))], flush=True)\n"
            "if os.fork() == 0:\n"
            "    print([str(each) for _, each in bus.deliver(iter([event()]), Lease.lasting(60))], flush=True)\n"
            "    sys.exit()\n"
            "print('ended', os.wait()[1])\n",
            kafka.servers,
            topic,
        )
        assert said == "['Delivered()']\n['Delivered()']\nended 0\n"
        assert len(kafka.messages(topic)) == 2


class TestAMessageThatIsRefused:
    def test_has_the_outcome_of_the_brokers_error(self, box: Outbox, kafka: MockKafka, topic: str, make: Make) -> None:
        emit(1)
        events = events_of(box)
        bus = make(kafka, topic)
        assert deliver(bus, events) == [DELIVERED_OUTCOME]
        for name, kind in (
            ("MSG_SIZE_TOO_LARGE", Failed),
            ("INVALID_RECORD", Failed),
            ("POLICY_VIOLATION", Failed),
            ("UNSUPPORTED_FOR_MESSAGE_FORMAT", Unavailable),
        ):
            kafka.refuse_next(getattr(KafkaError, name))
            (outcome,) = deliver(bus, events)
            assert isinstance(outcome, kind)
            assert name in outcome.error
        assert deliver(bus, events) == [DELIVERED_OUTCOME]

    def test_fails_alone_though_the_broker_refuses_the_whole_batch_that_it_is_in(
        self, box: Outbox, kafka: MockKafka, topic: str, make: Make
    ) -> None:
        """A broker refuses a batch of messages as one, for example since it is larger than a message may be."""
        emit(5)
        bus = make(kafka, topic, config=QUIET | {"linger.ms": 200})
        bus.check()
        # The first is the batch's; the others are those of its messages, each published alone.
        kafka.refuse_next(KafkaError.MSG_SIZE_TOO_LARGE, 0, KafkaError.INVALID_RECORD)
        outcomes = deliver(bus, events_of(box))
        assert [isinstance(each, Failed) for each in outcomes] == [False, True, False, False, False]
        assert outcomes.count(DELIVERED_OUTCOME) == 4
        assert len(kafka.messages(topic)) == 4

    def test_is_tried_again_by_the_producer_itself_if_the_leader_has_changed(
        self, box: Outbox, kafka: MockKafka, topic: str, make: Make
    ) -> None:
        emit(5)
        bus = make(kafka, topic)
        bus.check()
        kafka.refuse_next(KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.NOT_ENOUGH_REPLICAS)
        assert deliver(bus, events_of(box)) == [DELIVERED_OUTCOME] * 5
        assert len(kafka.messages(topic)) == 5

    @pytest.mark.parametrize("name", ["TOPIC_AUTHORIZATION_FAILED", "UNKNOWN_TOPIC_OR_PART"])
    def test_is_tried_again_if_its_topic_does_not_exist_or_may_not_be_written_to_and_the_others_are_delivered(
        self, box: Outbox, kafka: MockKafka, make: Make, name: str
    ) -> None:
        topic = f"events-{uuid.uuid4().hex}"
        closed = f"{topic}.closed"
        kafka.create_topic(topic)
        kafka.refuse_topic(closed, getattr(KafkaError, name))
        for suffix in ("", ".closed", ""):
            emit_one(aggregate_type=topic + suffix)
        bus = make(kafka, "{aggregate_type}", timeout=3, config=QUIET | {"topic.metadata.propagation.max.ms": 0})
        first, second, third = deliver(bus, events_of(box))
        assert (first, third) == (DELIVERED_OUTCOME, DELIVERED_OUTCOME)
        assert isinstance(second, Retry)
        assert f"topic {closed}: " in second.error
        assert name.removesuffix("_OR_PART") in second.error

    def test_fails_if_it_is_larger_than_the_producer_allows_and_the_others_are_delivered(
        self, box: Outbox, kafka: MockKafka, topic: str, make: Make
    ) -> None:
        for size in (1, 5_000, 2):
            emit_one(payload={"text": "x" * size})
        bus = make(kafka, topic, config=QUIET | {"message.max.bytes": 2_000})
        first, second, third = deliver(bus, events_of(box))
        assert (first, third) == (DELIVERED_OUTCOME, DELIVERED_OUTCOME)
        assert isinstance(second, Failed)
        assert "MSG_SIZE_TOO_LARGE" in second.error

    @pytest.mark.parametrize("name", ["a b", ".", "..", "x" * 100, "ü"])
    def test_fails_if_its_topic_can_not_exist(self, box: Outbox, kafka: MockKafka, make: Make, name: str) -> None:
        emit_one(aggregate_id=name)
        template = "{aggregate_id}" * 3 if len(name) == 100 else "{aggregate_id}"
        (outcome,) = deliver(make(kafka, template), events_of(box))
        assert isinstance(outcome, Failed)
        assert "is not a name of a topic" in outcome.error

    def test_waits_if_the_producer_holds_as_many_messages_as_it_may(
        self, box: Outbox, kafka: MockKafka, topic: str, make: Make
    ) -> None:
        emit(5)
        bus = make(kafka, topic, config=QUIET | {"queue.buffering.max.messages": 2, "linger.ms": 100})
        outcomes = deliver(bus, events_of(box))
        assert outcomes.count(DELIVERED_OUTCOME) >= 2
        waiting = [each for each in outcomes if isinstance(each, Unavailable)]
        assert waiting
        assert "Queue full" in str(waiting[0])


class TestABrokerThatCanNotBeReached:
    def test_costs_no_attempt_and_gets_its_events_later(
        self, box: Outbox, kafka: MockKafka, topic: str, make: Make
    ) -> None:
        bus = make(kafka, topic, timeout=0.5)
        outbox.add_destination(bus)
        emit(3)
        kafka.proxy.refuse()
        deliver_all(box)
        assert statuses() == {"pending": 3}
        assert {row.attempts for row in outbox.OutboxEvent.select()} == {0}
        assert all("could not connect" in str(row.error_message) for row in outbox.OutboxEvent.select())
        kafka.proxy.go_on()
        bus.timeout = SECONDS
        let_pass(hours=1)
        deliver_all(box)
        assert statuses() == {"delivered": 3}

    def test_says_why(self, box: Outbox, make: Make, kafka: MockKafka) -> None:
        emit(1)
        (outcome,) = deliver(make(kafka, "t", bootstrap_servers="127.0.0.1:1", timeout=1), events_of(box))
        assert "Connection refused" in str(outcome)

    def test_that_hangs_holds_a_batch_for_no_longer_than_its_timeout(
        self, box: Outbox, kafka: MockKafka, topic: str, make: Make
    ) -> None:
        emit(1)
        (event,) = events_of(box)
        bus = make(kafka, topic, timeout=1)
        bus.check()
        kafka.proxy.stop()
        (outcome,) = deliver(bus, [event])
        assert isinstance(outcome, Unavailable)
        kafka.proxy.go_on()
        bus.timeout = SECONDS
        assert deliver(bus, [event]) == [DELIVERED_OUTCOME]

    def test_that_is_slow_is_waited_for(self, box: Outbox, kafka: MockKafka, topic: str, make: Make) -> None:
        emit(5)
        kafka.delay(0.1)
        assert deliver(make(kafka, topic), events_of(box)) == [DELIVERED_OUTCOME] * 5

    def test_again_and_again_loses_no_event_and_changes_no_order_of_a_key(
        self, box: Outbox, kafka: MockKafka, topic: str, make: Make
    ) -> None:
        outbox.add_destination(make(kafka, topic, config=QUIET | {"reconnect.backoff.ms": 10}))
        with box.database.atomic():
            for number in range(10):
                for key in "abc":
                    emit_one(aggregate_id=str(number), ordering_key=key)
        for _ in range(6):
            kafka.proxy.cut()
            box.process_pending_events(9)
            let_pass(hours=1)
        deliver_all(box)
        assert statuses() == {"delivered": 30}
        seen: dict[str, list[int]] = defaultdict(list)
        for message in kafka.messages(topic):
            number = int(headers_of(message)["aggregate_id"])
            if number not in seen[message.key().decode()]:
                seen[message.key().decode()].append(number)
        assert seen == {key: list(range(10)) for key in "abc"}


class TestParameters:
    @pytest.mark.parametrize(
        ("wrong", "text"),
        [
            ({"bootstrap_servers": ""}, "bootstrap_servers must be text"),
            ({"bootstrap_servers": []}, "bootstrap_servers must be text"),
            ({"bootstrap_servers": "me:hush@localhost:9092"}, "may have no user and password"),
            ({"topic": "{ordering_key}"}, "topic may contain"),
            ({"key": "{secret}"}, "key may contain"),
            ({"format": "avro"}, "format must be one of"),
            ({"config": {"acks": "0", "sasl.password": "hush"}}, "config may not have acks"),
            ({"config": {"enable.idempotence": False}}, "config may not have enable.idempotence"),
            ({"config": 7}, "config must be a mapping"),
        ],
    )
    def test_are_checked_and_no_password_is_repeated(self, wrong: dict[str, Any], text: str) -> None:
        with pytest.raises(outbox.RegistrationError, match=text) as raised:
            outbox.Kafka("bus", **{"bootstrap_servers": "localhost"} | wrong)
        assert "hush" not in str(raised.value)

    @pytest.mark.parametrize(
        ("config", "name"),
        [({"sals.username": "hush"}, "sals.username"), ({"security.protocol": "hush"}, "security.protocol")],
    )
    def test_that_librdkafka_refuses_are_named_without_their_value(
        self, box: Outbox, make: Make, kafka: MockKafka, config: dict[str, str], name: str
    ) -> None:
        emit(1)
        (outcome,) = deliver(make(kafka, "t", config=config), events_of(box))
        assert isinstance(outcome, Unavailable)
        assert f"librdkafka refuses the setting {name} in `config`" in str(outcome)
        assert "hush" not in str(outcome)

    def test_with_a_password_are_never_shown(
        self, box: Outbox, make: Make, kafka: MockKafka, caplog: pytest.LogCaptureFixture
    ) -> None:
        emit(1)
        config = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
        secrets = {"sasl.username": "me", "sasl.password": "hush"}
        bus = make(kafka, "t", config=config | secrets, timeout=1)
        (outcome,) = deliver(bus, events_of(box))
        assert isinstance(outcome, Unavailable)
        assert "hush" not in str(outcome) + repr(bus) + caplog.text

    def test_are_not_in_what_librdkafka_logs(
        self, box: Outbox, make: Make, kafka: MockKafka, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It logs the address that it asks for a token, which may have a key in it, when it can't reach it."""
        emit(1)
        config = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "me",
            "sasl.oauthbearer.client.secret": "in-a-log-1",
            "sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/?key=in-a-log-2",
        }
        bus, events = make(kafka, "t", config=config, timeout=1), events_of(box)
        # The outcome may come before the line, so the batch is published until the line is there.
        assert wait_until(lambda: bool(deliver(bus, events)) and "OIDC" in caplog.text, SECONDS)
        assert "in-a-log" not in caplog.text
        assert 'token from "***"' in caplog.text
