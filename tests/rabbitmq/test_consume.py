"""A consumer of a queue of RabbitMQ, with a real server: retries, parking, crashes, and outages of either side."""

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import peewee
import pytest

import outbox
from outbox.admin.processes import processes
from outbox.admin.streams import stream_groups
from outbox.consumer import rabbit_source
from outbox.consumer.options import Intervals
from outbox.core import Outbox
from outbox.destinations.outcome import DELIVERED_OUTCOME
from outbox.destinations.protocol import Lease
from outbox.events.event import Event
from outbox.telemetry.process_reports import CONSUMER
from tests.consumer.streams import Crash, consume, dies, note, notes, running
from tests.rabbitmq.queue import Queue
from tests.rabbitmq.server import RabbitmqServer
from tests.support.table import becomes_true, claimed, emit_one
from tests.support.tcp_proxy import TcpProxy

SECONDS = 30.0
LONG = 900.0

MakeConsumer = Callable[..., outbox.Consumer]
kinds = pytest.mark.parametrize("queue", ["classic", "quorum"], indirect=True)


@pytest.fixture
def url(sqlite_url: str) -> str:
    """The same on every database."""
    return sqlite_url


@pytest.fixture
def queue(rabbitmq: RabbitmqServer, request: pytest.FixtureRequest) -> Queue:
    return Queue(rabbitmq, getattr(request, "param", "classic"))


@pytest.fixture
def proxy(rabbitmq: RabbitmqServer) -> Iterator[TcpProxy]:
    with TcpProxy(rabbitmq.port) as proxy:
        yield proxy


@pytest.fixture
def make_consumer(box: Outbox, rabbitmq: RabbitmqServer, queue: Queue) -> MakeConsumer:
    """Make consumers of the test's queue; what has failed is tried again after a moment."""

    def make(where: TcpProxy | None = None, query: str = "", **options: Any) -> outbox.Consumer:
        class QuickConsumer(outbox.Consumer):
            intervals = Intervals(block_seconds=0.05, source_retry_seconds=0.05, database_retry_seconds=0.05)

        url = f"amqp://guest:guest@127.0.0.1:{rabbitmq.port if where is None else where.port}/%2F{query}"
        defaults: dict[str, Any] = {"url": url, "idle_seconds": 0.1, "timeout": SECONDS}
        return QuickConsumer(queue.name, **defaults | options)

    return make


def done(consumer: outbox.Consumer, number: int) -> Callable[[], bool]:
    return lambda: consumer.counts.processed + consumer.counts.parked == number


class TestAMessage:
    @pytest.mark.parametrize("format", ["headers", "json", "cloudevents", "cloudevents-binary"])
    def test_is_the_event_that_was_emitted_to_the_byte(
        self, box: Outbox, rabbitmq: RabbitmqServer, queue: Queue, make_consumer: MakeConsumer, format: str
    ) -> None:
        emit_one(
            "user.created",
            aggregate_type="Üser",
            aggregate_id="7/ß",
            payload={"name": "Žofia ☃", "zeros": 1.50, "big": 2**70},
            correlation_id="çorr",
            tenant_id="ténant",
            ordering_key="user:7",
        )
        (sent,) = claimed(box).events
        bus = outbox.Rabbit("bus", url=rabbitmq.url, exchange="", routing_key=queue.name, format=format)
        assert dict(bus.deliver(iter([sent]), Lease.lasting(60))) == {sent: DELIVERED_OUTCOME}
        bus.close()
        received: list[Event] = []
        box.registry.handler("user.*")(received.append)
        consumer = make_consumer()
        consume(consumer, until=done(consumer, 1))
        (came,) = received
        for name in (
            "id", "event_type", "aggregate_type", "aggregate_id", "body", "correlation_id", "tenant_id",
            "ordering_key", "seq", "created_at", "headers",
        ):  # fmt: skip
            assert getattr(came, name) == getattr(sent, name), name
        assert (came.attempt, queue.left()) == (1, 0)

    @kinds
    def test_that_keeps_failing_is_parked_with_its_error_and_the_others_are_not_held_up(
        self, queue: Queue, make_consumer: MakeConsumer, caplog: pytest.LogCaptureFixture
    ) -> None:
        attempts = []

        @outbox.handler("note.*", name="notes")
        def fail(event: Event) -> None:
            note(event.payload["n"])
            if event.payload["n"] == 0:
                attempts.append(event.attempt)
                raise ValueError(f"attempt {event.attempt}")

        (bad,) = queue.publish({"n": 0}, tenant_id="t")
        queue.publish({"n": 1}, {"n": 2})
        consumer = make_consumer(max_deliveries=3)
        with caplog.at_level(logging.WARNING, "outbox"):
            consume(consumer, until=done(consumer, 3))
        assert (attempts, notes(), queue.left()) == ([1, 2, 3], ["1", "2"], 0)
        ((properties, body),) = queue.parked()
        assert (body, properties.message_id, properties.delivery_mode) == (b'{"n": 0}', str(bad), 2)
        assert properties.headers["tenant_id"] == "t"
        parked = {name: properties.headers[name] for name in ("error", "deliveries", "queue")}
        assert parked == {"error": "notes: ValueError: attempt 3", "deliveries": 3, "queue": queue.name}
        assert f"was moved to the dead-letter queue {queue.name}.dead: notes: ValueError: attempt 3" in caplog.text

    @pytest.mark.parametrize(
        ("body", "properties", "error"),
        [
            (b"", {}, "its body is not a JSON object"),
            (b'{"n": NaN}', {"headers": {"aggregate_type": "A", "aggregate_id": "1"}}, "it has no 'id'"),
            (b"{}", {"headers": {"aggregate_type": 7}}, "'aggregate_type' is not text"),
            (b"x" * 2_000, {"content_type": "application/cloudevents+json"}, "not a JSON object"),
        ],
    )
    def test_that_is_no_event_is_parked_as_it_is(
        self, queue: Queue, make_consumer: MakeConsumer, body: bytes, properties: dict[str, Any], error: str
    ) -> None:
        outbox.handler("*")(note)
        queue.publish_raw(body, **properties)
        consumer = make_consumer()
        consume(consumer, until=done(consumer, 1))
        ((parked, parked_body),) = queue.parked()
        assert parked_body == body
        assert error in parked.headers["error"]

    def test_that_was_parked_can_be_consumed_from_the_dead_letter_queue(
        self, rabbitmq: RabbitmqServer, queue: Queue, make_consumer: MakeConsumer
    ) -> None:
        attempts: list[int] = []

        @outbox.handler("note.*", name="notes")
        def handle(event: Event) -> None:
            attempts.append(event.attempt)
            if len(attempts) == 1:
                raise outbox.Reject("not yet")
            note(event.id)

        (id,) = queue.publish({})
        first = make_consumer()
        consume(first, until=done(first, 1))
        second = outbox.Consumer(f"{queue.name}.dead", url=rabbitmq.url)
        consume(second, until=done(second, 1))
        assert (attempts, notes()) == ([1, 1], [str(id)])

    def test_stays_while_the_dead_letter_queue_can_not_store_it_and_is_parked_later(
        self, queue: Queue, make_consumer: MakeConsumer, caplog: pytest.LogCaptureFixture
    ) -> None:
        outbox.handler("*")(note)
        consumer = make_consumer()
        with queue.channel() as channel:
            channel.queue_declare(f"{queue.name}.dead", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
        queue.publish_raw(b"no event")
        with running(consumer):
            becomes_true(lambda: "has not stored a message in the dead-letter queue" in caplog.text)
            assert consumer.counts.parked == 0
            with queue.channel() as channel:
                channel.queue_delete(f"{queue.name}.dead")
                channel.queue_declare(f"{queue.name}.dead")
            becomes_true(done(consumer, 1))
        assert queue.parked_count() == 1

    def test_stays_while_there_is_no_dead_letter_queue_and_is_parked_later(
        self, queue: Queue, make_consumer: MakeConsumer, caplog: pytest.LogCaptureFixture
    ) -> None:
        outbox.handler("note.*", name="notes")(lambda event: note("effect"))
        consumer = make_consumer()
        with running(consumer):
            becomes_true(lambda: queue_has_consumer(queue))
            with queue.channel() as channel:
                channel.queue_delete(f"{queue.name}.dead")
            queue.publish_raw(b"no event")
            queue.publish({})
            becomes_true(lambda: notes() == ["effect"])
            becomes_true(lambda: "returned 312 NO_ROUTE" in caplog.text)
            assert consumer.counts.parked == 0
            with queue.channel() as channel:
                channel.queue_declare(f"{queue.name}.dead")
            becomes_true(done(consumer, 2))
        assert queue.parked_count() == 1

    def test_of_a_connection_that_was_lost_is_not_taken_for_one_of_the_next_connection(
        self, queue: Queue, proxy: TcpProxy, make_consumer: MakeConsumer
    ) -> None:
        """The numbers of the messages begin anew: an acknowledgement that is late would be that of another message."""
        failing = threading.Event()
        failing.set()

        @outbox.handler("note.*", name="notes")
        def handle(event: Event) -> None:
            if failing.is_set():
                raise outbox.Unavailable("away")
            note(event.payload["n"])

        queue.publish(*({"n": n} for n in range(3)))
        consumer = make_consumer(proxy, idle_seconds=LONG)
        source: Any = consumer._source
        with running(consumer):
            becomes_true(lambda: len(source._messages) == 3)
            failing.clear()
            proxy.cut()
            becomes_true(lambda: notes() == ["0", "1", "2"])
            becomes_true(lambda: source._messages == {})
        assert queue.left() == 0


class TestManyMessagesThatFail:
    def test_do_not_hold_up_new_ones(self, queue: Queue, make_consumer: MakeConsumer) -> None:
        """More of them wait to be tried again than RabbitMQ gives a consumer at a time."""

        @outbox.handler("note.*", name="notes")
        def handle(event: Event) -> None:
            if event.payload["bad"]:
                raise outbox.Unavailable("away")
            note("good")

        queue.publish(*[{"bad": True}] * 10, {"bad": False})
        consumer = make_consumer(batch=2, idle_seconds=LONG)
        consume(consumer, until=lambda: consumer.counts.processed)
        assert notes() == ["good"]
        becomes_true(lambda: queue.left() == 10)  # they went back when the consumer left

    def test_are_given_back_before_rabbitmq_loses_patience(
        self, queue: Queue, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rabbit_source, "MOST_SECONDS", 0.5)
        attempts: list[int] = []

        @outbox.handler("note.*")
        def handle(event: Event) -> None:
            attempts.append(event.attempt)
            raise outbox.Unavailable("away")

        queue.publish({})
        consumer = make_consumer(max_deliveries=2, idle_seconds=0.01)
        consume(consumer, until=lambda: attempts.count(2) >= 5)
        assert set(attempts) == {1, 2}
        assert consumer.counts.parked == 0


class TestACrash:
    @kinds
    def test_counts_for_the_message_that_was_begun_and_not_for_its_neighbours(
        self, queue: Queue, make_consumer: MakeConsumer
    ) -> None:
        attempts: list[int] = []

        @outbox.handler("note.*", name="notes")
        def handle(event: Event) -> None:
            if event.payload["n"] == 1:
                attempts.append(event.attempt)
                raise Crash
            note(event.attempt)

        queue.publish({"n": 0}, {"n": 1}, {"n": 2})
        for _ in range(3):
            dies(make_consumer(max_deliveries=3))
        consumer = make_consumer(max_deliveries=3)
        consume(consumer, until=lambda: queue.parked_count() == 1 and len(notes()) == 2)
        assert attempts == [1, 2, 3]
        assert notes() == ["1", "2"]
        ((properties, _),) = queue.parked()
        assert "delivered 3 times, and each time its consumer crashed" in properties.headers["error"]

    def test_parks_a_message_that_may_be_delivered_only_once_and_not_one_that_was_only_fetched(
        self, queue: Queue, make_consumer: MakeConsumer
    ) -> None:
        @outbox.handler("note.*", name="notes")
        def handle(event: Event) -> None:
            if event.payload["n"] == 0:
                raise Crash
            note(event.attempt)

        queue.publish({"n": 0}, {"n": 1})
        with queue.channel() as channel:  # both are fetched by a consumer that begins with neither
            channel.basic_get(queue.name)
            channel.basic_get(queue.name)
        dies(make_consumer(max_deliveries=1))
        consumer = make_consumer(max_deliveries=1)
        consume(consumer, until=done(consumer, 2))
        assert (notes(), queue.parked_count()) == (["1"], 1)


class TestAnOutageOfTheDatabase:
    def test_does_not_count_and_the_messages_are_processed_when_it_is_over(
        self, queue: Queue, make_consumer: MakeConsumer
    ) -> None:
        attempts: list[int] = []

        @outbox.handler("note.*", name="notes")
        def handle(event: Event) -> None:
            attempts.append(event.attempt)
            if len(attempts) < 4:
                raise peewee.OperationalError(ConnectionError(), "the connection is lost")
            note("effect")

        queue.publish({}, {})
        consumer = make_consumer(max_deliveries=2)
        consume(consumer, until=done(consumer, 2))
        assert attempts == [1] * 5
        assert (notes(), queue.parked_count()) == (["effect"] * 2, 0)

    def test_while_a_delivery_is_counted_does_not_count_either(
        self, box: Outbox, queue: Queue, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        attempts: list[int] = []

        @outbox.handler("note.*", name="notes")
        def handle(event: Event) -> None:
            attempts.append(event.attempt)

        queue.publish({})
        with queue.channel() as channel:
            channel.basic_get(queue.name)
        consumer = make_consumer(max_deliveries=2)
        begin, failures = (
            consumer._processor._deliveries.begin,
            [peewee.OperationalError(ConnectionError(), "away")] * 3,
        )

        def begin_later(*arguments: Any) -> Any:
            if failures:
                raise failures.pop()
            return begin(*arguments)

        monkeypatch.setattr(consumer._processor._deliveries, "begin", begin_later)
        consume(consumer, until=done(consumer, 1))
        assert attempts == [2]


class TestAnOutageOfRabbitmq:
    def test_while_a_handler_runs_lets_its_message_take_effect_once(
        self, queue: Queue, proxy: TcpProxy, make_consumer: MakeConsumer, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "outbox")
        attempts: list[int] = []

        @outbox.handler("note.*", name="notes")
        def handle(event: Event) -> None:
            note(event.id)
            attempts.append(event.attempt)
            if len(attempts) == 1:
                proxy.cut()
                becomes_true(lambda: not source._queue.is_open)

        ids = queue.publish({}, {}, {})
        consumer = make_consumer(proxy)
        source: Any = consumer._source
        with running(consumer):
            becomes_true(lambda: len(notes()) == 3 and consumer.counts.skipped >= 1)
            becomes_true(lambda: queue.left() == 0)
        assert (notes(), queue.left()) == (sorted(map(str, ids)), 0)
        assert f"{queue.name}: the connection to RabbitMQ was lost: " in caplog.text

    def test_that_hangs_is_noticed_by_its_missing_heartbeats(
        self, queue: Queue, proxy: TcpProxy, make_consumer: MakeConsumer, caplog: pytest.LogCaptureFixture
    ) -> None:
        outbox.handler("note.*", name="notes")(lambda event: note("effect"))
        consumer = make_consumer(proxy, "?heartbeat=2")
        with running(consumer):
            queue.publish({})
            becomes_true(lambda: consumer.counts.processed >= 1)
            proxy.stop()
            becomes_true(lambda: "the connection to RabbitMQ was lost" in caplog.text)
            queue.publish({})
            proxy.go_on()
            becomes_true(lambda: len(notes()) == 2)

    def test_a_long_handler_does_not_end_the_connection(
        self, queue: Queue, proxy: TcpProxy, make_consumer: MakeConsumer
    ) -> None:
        @outbox.handler("note.*", name="notes")
        def handle(event: Event) -> None:
            before = proxy.sent
            becomes_true(lambda: proxy.sent >= before + 2)  # heartbeats
            note("effect")

        queue.publish({})
        consumer = make_consumer(proxy, "?heartbeat=3")
        consume(consumer, until=done(consumer, 1))
        assert (consumer.counts.skipped, proxy.connections) == (0, 1)

    def test_a_queue_that_was_deleted_is_waited_for(
        self, queue: Queue, make_consumer: MakeConsumer, caplog: pytest.LogCaptureFixture
    ) -> None:
        outbox.handler("note.*", name="notes")(lambda event: note("effect"))
        consumer = make_consumer()
        with running(consumer):
            becomes_true(lambda: queue_has_consumer(queue))
            with queue.channel() as channel:
                channel.queue_delete(queue.name)
            # Which of the two it notices first is chance.
            becomes_true(lambda: "no queue" in caplog.text or "the queue is gone" in caplog.text)
            with queue.channel() as channel:
                channel.queue_declare(queue.name, durable=True)
            queue.publish({})
            becomes_true(lambda: consumer.counts.processed == 1)


def queue_has_consumer(queue: Queue) -> bool:
    with queue.channel() as channel:
        return bool(channel.queue_declare(queue.name, passive=True).method.consumer_count)


class TestStopping:
    def test_finishes_what_was_read_and_gives_the_rest_back(self, queue: Queue, make_consumer: MakeConsumer) -> None:
        stopped = threading.Event()

        @outbox.handler("note.*", name="notes")
        def handle(event: Event) -> None:
            stopped.set()
            note(event.payload["n"])

        queue.publish(*({"n": n} for n in range(10)))
        consumer = make_consumer(batch=3)
        consumer.run(stopped)
        becomes_true(lambda: len(notes()) + queue.left() == 10)
        assert len(notes()) <= 3
        again = make_consumer()
        consume(again, until=lambda: len(notes()) == 10)
        assert notes() == sorted(map(str, range(10)))

    def test_does_not_wait_for_a_server_that_hangs(
        self, queue: Queue, proxy: TcpProxy, make_consumer: MakeConsumer, caplog: pytest.LogCaptureFixture
    ) -> None:
        outbox.handler("note.*", name="notes")(lambda event: note("effect"))
        consumer = make_consumer(proxy)
        source: Any = consumer._source
        with running(consumer):
            becomes_true(lambda: queue_has_consumer(queue))
            source._queue._timeout = 0.2
            proxy.stop()
        assert "RabbitMQ is unavailable, so this consumer could not say that it leaves" in caplog.text


class TestTheLag:
    def test_is_what_no_consumer_was_given_yet(
        self, queue: Queue, make_consumer: MakeConsumer, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "outbox")
        outbox.handler("note.*", name="notes")(lambda event: note("effect"))
        queue.publish({}, {}, {})
        consumer = make_consumer()
        assert consumer.lag() == 3
        consume(consumer, until=done(consumer, 3))
        assert f"{queue.name}: 0 behind, 0 pending, 3 processed, 0 skipped, 0 parked" in caplog.text

    def test_counts_as_pending_what_this_consumer_has_whether_it_has_begun_with_it_or_not(
        self, box: Outbox, queue: Queue, make_consumer: MakeConsumer
    ) -> None:
        outbox.handler("note.*", name="notes")(lambda event: note("effect"))
        queue.publish(*[{}] * 10)
        consumer = make_consumer(batch=4)
        source: Any = consumer._source
        source.open()
        becomes_true(lambda: source._queue.waiting == 4)  # as many as RabbitMQ gives a consumer
        assert source.state()[:2] == (6, 4)
        source.read(0)
        assert source.state()[:2] == (6, 4)
        consumer._report()
        box.reporter.start(CONSUMER)
        box.reporter.report_now()
        (found,) = stream_groups(processes(box.dialect), box.dialect.now())
        assert (found.stream, found.kind, found.behind, found.pending) == (queue.name, "queue", 6, 4)
        source.close()


class TestParameters:
    @pytest.mark.parametrize(
        ("wrong", "text"),
        [
            ({"url": "amqp://me:hush@127.0.0.1:1/"}, "The RabbitMQ of the queue .* can't be used"),
        ],
    )
    def test_are_checked_and_no_password_is_repeated(
        self, make_consumer: MakeConsumer, wrong: dict[str, Any], text: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        outbox.handler("*")(note)
        with pytest.raises(outbox.SettingsError, match=text) as raised:
            make_consumer(**wrong).check()
        assert "hush" not in str(raised.value) + caplog.text

    def test_the_queue_must_exist(self, queue: Queue, make_consumer: MakeConsumer) -> None:
        outbox.handler("*")(note)
        with queue.channel() as channel:
            channel.queue_delete(queue.name)
        with pytest.raises(outbox.SettingsError, match=r"has no queue .*: declare it, and bind it"):
            make_consumer().check()

    def test_the_url_may_be_that_of_the_settings(self, configure: Any, rabbitmq: RabbitmqServer, queue: Queue) -> None:
        configure(consume_url=rabbitmq.url)
        assert outbox.Consumer(queue.name).lag() == 0
