"""outbox.transactional: a plain actor.send() inside a transaction is stored; everything else goes straight through."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import dramatiq
import peewee
import pytest
from dramatiq import Worker, group, pipeline
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.redis import RedisBroker
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import GroupCallbacks, Middleware
from dramatiq.rate_limits.backends import StubBackend as StubRateLimits
from dramatiq.results import Results
from dramatiq.results.backends import StubBackend as StubResults

import outbox
from outbox import current_outbox
from outbox.core import Outbox
from outbox.dramatiq import ActorDestination, enqueue_now
from outbox.dramatiq.redis_broker import OutboxRedisBroker
from outbox.dramatiq.wakeup import send_wakeup
from outbox.storage.models import OutboxEvent
from tests.conftest import Configure, Note
from tests.dramatiq.conftest import close, make_broker
from tests.support.servers import Redis, wait_until
from tests.support.table import let_pass, statuses

Actor = dramatiq.Actor[..., Any]


@pytest.fixture(params=["postgres", "sqlite"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def results() -> StubResults:
    return StubResults()


@pytest.fixture
def broker(box: Outbox, results: StubResults) -> Iterator[StubBroker]:
    """An application's broker, made transactional."""
    broker = StubBroker()
    broker.add_middleware(GroupCallbacks(StubRateLimits()))
    broker.add_middleware(Results(backend=results, store_results=True))
    dramatiq.set_broker(broker)
    yield outbox.transactional(broker, databases=[box.database])
    dramatiq.broker.global_broker = None


@pytest.fixture
def ran() -> list[Any]:
    return []


@pytest.fixture
def work(broker: StubBroker, ran: list[Any]) -> Actor:
    @dramatiq.actor(max_retries=0)
    def work(*arguments: Any) -> int:
        ran.append(arguments)
        return len(ran)

    return work


@pytest.fixture
def run(box: Outbox, broker: StubBroker) -> Iterator[Callable[[], None]]:
    """Deliver what is stored, and let a Dramatiq worker run what is in the queues, until nothing is left."""
    worker = Worker(broker, worker_threads=2, worker_timeout=50)
    worker.start()

    def until_done() -> None:
        while box.process_pending_events()["processed"]:
            broker.join("default")
        broker.join("default")

    yield until_done
    worker.stop()


def queued(broker: StubBroker, queue: str = "default") -> int:
    return int(broker.queues[queue].qsize())


class TestEnqueue:
    def test_inside_a_transaction_a_message_is_stored_until_it_commits(
        self, box: Outbox, broker: StubBroker, work: Actor, run: Callable[[], None], ran: list[Any]
    ) -> None:
        with box.database.atomic():
            message = work.send(1)
            assert (queued(broker), statuses()) == (0, {"pending": 1})
        run()
        assert ran == [(1,)]
        assert OutboxEvent.get().aggregate_id == message.message_id

    def test_of_a_transaction_that_is_rolled_back_nothing_is_sent(
        self, box: Outbox, work: Actor, run: Callable[[], None], ran: list[Any]
    ) -> None:
        with box.database.atomic() as transaction:
            work.send(1)
            transaction.rollback()
        run()
        assert (ran, statuses()) == ([], {})

    def test_outside_a_transaction_it_is_sent_at_once(self, broker: StubBroker, work: Actor) -> None:
        work.send(1)
        assert (queued(broker), statuses()) == (1, {})

    def test_a_plain_begin_is_a_transaction_too(self, box: Outbox, broker: StubBroker, work: Actor) -> None:
        box.database.connect(reuse_if_open=True)
        with box.database.manual_commit():
            box.database.execute_sql("BEGIN")
            work.send(1)
            box.database.execute_sql("ROLLBACK")
        assert (queued(broker), statuses()) == (0, {})

    def test_a_delay_is_a_due_time_in_the_table(
        self, box: Outbox, broker: StubBroker, work: Actor, run: Callable[[], None], ran: list[Any]
    ) -> None:
        with box.database.atomic():
            work.send_with_options(args=(1,), delay=timedelta(days=9))
        run()
        assert ran == []
        let_pass(days=9)
        run()
        assert ran == [(1,)]

    def test_the_same_message_may_be_enqueued_twice(
        self, box: Outbox, broker: StubBroker, work: Actor, run: Callable[[], None], ran: list[Any]
    ) -> None:
        message = work.message(1)
        with box.database.atomic():
            broker.enqueue(message)
            broker.enqueue(message)
        run()
        assert ran == [(1,), (1,)]

    def test_actors_that_were_declared_before_are_included(self, box: Outbox) -> None:
        broker = StubBroker()

        @dramatiq.actor(broker=broker)
        def early() -> None:
            pass

        assert outbox.transactional(broker, databases=[box.database]) is broker
        with box.database.atomic():
            early.send()
        assert (queued(broker), statuses()) == (0, {"pending": 1})

    def test_a_second_call_changes_nothing(self, box: Outbox, broker: StubBroker, work: Actor) -> None:
        outbox.transactional(broker, databases=[box.database])
        with box.database.atomic():
            work.send(1)
        assert statuses() == {"pending": 1}
        work.send(2)
        assert queued(broker) == 1

    def test_a_message_can_be_taken_back(self, box: Outbox, work: Actor) -> None:
        with box.database.atomic():
            message = work.send(1)
            assert outbox.cancel(message)
        assert statuses() == {}


class TestCompositions:
    def test_a_pipeline_runs_after_the_commit_step_by_step(
        self, box: Outbox, broker: StubBroker, work: Actor, run: Callable[[], None], ran: list[Any]
    ) -> None:
        with box.database.atomic():
            pipeline([work.message("first"), work.message("second"), work.message("third")]).run()
            assert queued(broker) == 0
        run()
        assert ran == [("first",), ("second", 1), ("third", 2)]

    def test_a_group_runs_after_the_commit_with_its_callback_once(
        self, box: Outbox, broker: StubBroker, work: Actor, run: Callable[[], None], ran: list[Any]
    ) -> None:
        with box.database.atomic():
            members = group([work.message(number) for number in range(3)])
            members.add_completion_callback(work.message("all done"))
            members.run()
            assert queued(broker) == 0
        run()
        assert sorted(map(str, ran)) == ["('all done',)", "(0,)", "(1,)", "(2,)"]
        assert ran[-1] == ("all done",)

    def test_of_a_transaction_that_is_rolled_back_no_part_runs(
        self, box: Outbox, work: Actor, run: Callable[[], None], ran: list[Any]
    ) -> None:
        with box.database.atomic() as transaction:
            pipeline([work.message(1), work.message(2)]).run()
            group([work.message(3), work.message(4)]).run()
            transaction.rollback()
        run()
        assert ran == []

    def test_the_result_is_found_under_the_message_that_send_returned(
        self, box: Outbox, work: Actor, run: Callable[[], None], results: StubResults
    ) -> None:
        with box.database.atomic():
            message = work.send(1)
        run()
        assert message.get_result(backend=results) == 1


class TransactionPerMessage(Middleware):
    """Runs every message in a transaction: committed if the actor returns, rolled back if it raises."""

    def __init__(self, database: peewee.Database) -> None:
        self._database = database

    def before_process_message(self, broker: Any, message: Any) -> None:
        self._database.connect(reuse_if_open=True)
        self._database.session_start()

    def after_process_message(self, broker: Any, message: Any, *, result: Any = None, exception: Any = None) -> None:
        if exception is None:
            self._database.session_commit()
        else:
            self._database.session_rollback()
        self._database.close()


class TestStraightThrough:
    @pytest.fixture
    def in_transactions(self, box: Outbox, broker: StubBroker) -> None:
        # First in the list, so last to be told that a message was processed: its transaction is still open when
        # Dramatiq's own middleware enqueues a retry or the next step.
        broker.middleware.insert(0, TransactionPerMessage(box.database))

    @pytest.mark.usefixtures("in_transactions")
    def test_dramatiqs_retries_are_not_rolled_back_with_the_failed_attempt(
        self, box: Outbox, broker: StubBroker, run: Callable[[], None]
    ) -> None:
        attempts = []

        @dramatiq.actor(max_retries=3, min_backoff=1, max_backoff=1)
        def flaky() -> None:
            attempts.append(1)
            Note.create(text="of this attempt")
            if len(attempts) < 3:
                raise ZeroDivisionError

        with box.database.atomic():
            flaky.send()
        run()
        wait_until(lambda: len(attempts) == 3)
        broker.join("default")
        assert Note.select().count() == 1
        assert statuses() == {"delivered": 1}

    @pytest.mark.usefixtures("in_transactions")
    def test_the_next_step_of_a_pipeline_is_not_stored(
        self, box: Outbox, broker: StubBroker, work: Actor, run: Callable[[], None], ran: list[Any]
    ) -> None:
        with box.database.atomic():
            pipeline([work.message("first"), work.message("second")]).run()
        run()
        assert ran == [("first",), ("second", 1)]
        assert statuses() == {"delivered": 1}

    @pytest.mark.usefixtures("in_transactions")
    def test_what_an_actor_sends_is_rolled_back_with_its_attempt(
        self, box: Outbox, broker: StubBroker, work: Actor, run: Callable[[], None], ran: list[Any]
    ) -> None:
        attempts: list[int] = []

        @dramatiq.actor(max_retries=3, min_backoff=1, max_backoff=1)
        def parent() -> None:
            work.send(len(attempts))
            attempts.append(1)
            if len(attempts) < 3:
                raise ZeroDivisionError

        parent.send()
        run()
        wait_until(lambda: len(attempts) == 3)
        broker.join("default")
        run()
        assert ran == [(2,)]

    def test_a_time_limit_in_the_middle_of_a_signal_does_not_last_until_the_next_message(
        self, box: Outbox, broker: StubBroker, work: Actor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(enqueue_now._state, "signals", 1)  # an exception came between two lines of a wrapper
        message = work.message(1)
        broker.emit_before("process_message", message)
        with box.database.atomic():
            work.send(1)
        broker.emit_after("process_message", message)  # otherwise later tests have a current message
        assert (queued(broker), statuses()) == (0, {"pending": 1})

    def test_wakeups_are_sent_inside_a_transaction(self, box: Outbox, broker: StubBroker) -> None:
        broker.declare_queue("outbox")
        with box.database.atomic():
            send_wakeup(broker, "outbox")
        assert (queued(broker, "outbox"), statuses()) == (1, {})

    def test_events_for_actors_are_delivered_not_stored_again(
        self, configure: Configure, broker: StubBroker, work: Actor
    ) -> None:
        box = configure(dispatch="inline")
        outbox.add_destination(ActorDestination(work, events=["order.*"]))
        with box.database.atomic():
            outbox.emit("Order", 1, "order.placed")
        assert (queued(broker), statuses()) == (1, {"delivered": 1})


class TestDatabases:
    def test_one_that_is_not_the_outboxs_is_refused_when_it_is_named(self, box: Outbox) -> None:
        with pytest.raises(outbox.SettingsError, match="is not the outbox's database"):
            outbox.transactional(StubBroker(), databases=[box.database, peewee.SqliteDatabase(":memory:")])

    def test_none_is_refused(self, box: Outbox) -> None:
        with pytest.raises(outbox.SettingsError, match=r"databases=\[db\]"):
            outbox.transactional(StubBroker(), databases=[])

    def test_configure_comes_first(self, database: peewee.Database) -> None:
        current_outbox.forget()
        with pytest.raises(outbox.SettingsError, match=r"Call outbox\.configure\(database=db\) before"):
            outbox.transactional(StubBroker(), databases=[database])

    def test_a_proxy_stands_for_its_database(self, box: Outbox) -> None:
        proxy: Any = peewee.DatabaseProxy()
        proxy.initialize(box.database)
        broker = outbox.transactional(StubBroker(), databases=[proxy])
        broker.declare_queue("default")
        with box.database.atomic():
            broker.enqueue(dramatiq.Message("default", "work", (), {}, {}))
        assert statuses() == {"pending": 1}

    def test_configuring_another_one_later_is_an_error_at_the_next_send(
        self, box: Outbox, broker: StubBroker, work: Actor
    ) -> None:
        outbox.configure(database=peewee.SqliteDatabase(":memory:"), dispatch="off")
        with box.database.atomic(), pytest.raises(outbox.SettingsError, match=r"Call outbox\.transactional again"):
            work.send(1)


class TestOnRedis:
    @pytest.fixture(params=["ours", "dramatiq's"])
    def redis_broker(self, request: pytest.FixtureRequest, redis_server: Redis, box: Outbox) -> Iterator[RedisBroker]:
        own: OutboxRedisBroker = make_broker(redis_server.url)
        broker = own if request.param == "ours" else RedisBroker(client=own.client, namespace=own.namespace)
        dramatiq.set_broker(broker)
        yield outbox.transactional(broker, databases=[box.database])
        dramatiq.broker.global_broker = None
        close(own)

    def test_stored_messages_are_enqueued_as_dramatiq_would_have(self, box: Outbox, redis_broker: RedisBroker) -> None:
        @dramatiq.actor
        def work(number: int) -> None:
            pass

        with box.database.atomic():
            sent = [work.send(number) for number in range(3)]
        assert redis_broker.client.llen(f"{redis_broker.namespace}:default") == 0
        box.process_pending_events()
        key = f"{redis_broker.namespace}:default"
        texts: list[Any] = [
            redis_broker.client.hget(f"{key}.msgs", id) for id in redis_broker.client.lrange(key, 0, -1)
        ]
        messages = [dramatiq.Message.decode(text) for text in texts]
        assert [message.message_id for message in messages] == [message.message_id for message in sent]
        assert all(list(message.options) == ["redis_message_id"] for message in messages)

    def test_before_enqueue_has_run_at_the_send_and_does_not_run_again(
        self, box: Outbox, redis_broker: RedisBroker
    ) -> None:
        class Counting(Middleware):
            calls = 0

            def before_enqueue(self, broker: Any, message: Any, delay: Any) -> None:
                Counting.calls += 1

        redis_broker.add_middleware(Counting())

        @dramatiq.actor
        def work() -> None:
            pass

        with box.database.atomic():
            work.send()
        assert Counting.calls == 1
        box.process_pending_events()
        assert (Counting.calls, statuses()) == (1, {"delivered": 1})


class TestOnRabbitmq:
    def test_every_message_of_the_outbox_is_confirmed_by_the_server(
        self, box: Outbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[str] = []

        class Connection:
            """What Dramatiq calls of pika's connection and of its channel; it notes the calls."""

            is_open = True

            def __init__(self, **_: Any) -> None:
                pass

            def channel(self) -> Any:
                return self

            def __getattr__(self, name: str) -> Any:
                return lambda *args, **kwargs: calls.append(name)

        monkeypatch.setattr("pika.BlockingConnection", Connection)
        broker = RabbitmqBroker(url="amqp://127.0.0.1:1")
        dramatiq.set_broker(outbox.transactional(broker, databases=[box.database]))
        try:

            @dramatiq.actor
            def work() -> None:
                pass

            with box.database.atomic():
                work.send()
            box.process_pending_events()
        finally:
            dramatiq.broker.global_broker = None
        assert statuses() == {"delivered": 1}
        assert calls.index("confirm_delivery") < calls.index("basic_publish")
