"""outbox.send: a message is stored in the caller's transaction, and enqueued if and only if that commits."""

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import dramatiq
import peewee
import pytest
from dramatiq.brokers.redis import RedisBroker
from dramatiq.brokers.stub import StubBroker
from dramatiq.encoder import JSONEncoder, PickleEncoder
from dramatiq.middleware import Middleware, MiddlewareError

import outbox
from outbox.core import Outbox
from outbox.dramatiq import ActorDestination
from outbox.storage.models import JOB, OutboxEvent
from tests.conftest import Configure, Note
from tests.support.table import change, let_pass, on_postgres, statuses


@pytest.fixture(params=["postgres", "sqlite"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def broker() -> Iterator[StubBroker]:
    """Dramatiq's global broker, as an application has set it."""
    broker = StubBroker()
    dramatiq.set_broker(broker)
    yield broker
    dramatiq.broker.global_broker = None


@pytest.fixture
def charge(broker: StubBroker) -> dramatiq.Actor[..., None]:
    @dramatiq.actor(queue_name="money")
    def charge(order: Any, **options: Any) -> None:
        pass

    return charge


def waiting(broker: StubBroker, queue: str = "money") -> list[dramatiq.Message[Any]]:
    """Return the messages in a queue, in their order."""
    return [dramatiq.Message.decode(text) for text in list(broker.queues[queue].queue)]


def jobs() -> list[OutboxEvent]:
    return list(OutboxEvent.select().order_by(OutboxEvent.seq))


class TestTheTransactionDecides:
    @pytest.mark.parametrize("ends", ["commits", "rolls back"])
    def test_a_message_is_enqueued_if_and_only_if_it_commits(
        self, box: Outbox, broker: StubBroker, charge: Any, ends: str
    ) -> None:
        with box.database.atomic() as transaction:
            Note.create(text="an order")
            outbox.send(charge, 42, currency="EUR")
            assert waiting(broker) == []
            if ends == "rolls back":
                transaction.rollback()
        box.process_pending_events()
        enqueued = [(message.args, message.kwargs) for message in waiting(broker)]
        assert enqueued == ([((42,), {"currency": "EUR"})] if ends == "commits" else [])

    def test_a_savepoint_that_is_rolled_back_takes_its_messages_with_it(
        self, box: Outbox, broker: StubBroker, charge: Any
    ) -> None:
        with box.database.atomic():
            outbox.send(charge, 1)
            with box.database.atomic() as savepoint:
                outbox.send(charge, 2)
                savepoint.rollback()
            outbox.send(charge, 3)
        box.process_pending_events()
        assert [message.args for message in waiting(broker)] == [(1,), (3,)]

    @on_postgres
    def test_a_transaction_that_an_error_has_aborted_sends_nothing(
        self, box: Outbox, broker: StubBroker, charge: Any
    ) -> None:
        with box.database.atomic():
            outbox.send(charge, 1)
            with pytest.raises(peewee.ProgrammingError):
                box.database.execute_sql("SELECT * FROM no_such_table")
        box.process_pending_events()
        assert waiting(broker) == []
        assert jobs() == []

    def test_inside_a_manual_commit_the_message_is_found_by_the_next_sweep(
        self, box: Outbox, broker: StubBroker, charge: Any
    ) -> None:
        box.database.connect(reuse_if_open=True)
        with box.database.manual_commit():
            box.database.execute_sql("BEGIN")
            outbox.send(charge, 1)
            box.database.execute_sql("COMMIT")
        box.drain()
        assert [message.args for message in waiting(broker)] == [(1,)]

    def test_after_the_commit_it_is_delivered_inline_if_the_settings_say_so(
        self, configure: Configure, broker: StubBroker, charge: Any
    ) -> None:
        box = configure(dispatch="inline")
        with box.database.atomic():
            outbox.send(charge, 1)
        assert [message.args for message in waiting(broker)] == [(1,)]

    def test_outside_a_transaction_it_is_refused_if_the_settings_say_so(
        self, configure: Configure, charge: Any
    ) -> None:
        configure(require_transaction=True)
        with pytest.raises(outbox.TransactionRequired, match=r"^outbox\.send was called outside a transaction"):
            outbox.send(charge, 1)
        assert jobs() == []


class TestTheMessage:
    def test_it_runs_under_the_id_that_the_caller_got(self, box: Outbox, broker: StubBroker, charge: Any) -> None:
        with box.database.atomic():
            message = outbox.send(charge, 1)
        box.process_pending_events()
        assert [each.message_id for each in waiting(broker)] == [message.message_id]
        assert jobs()[0].id == UUID(message.message_id)

    def test_it_is_stored_whole(self, box: Outbox, broker: StubBroker, charge: Any) -> None:
        @dramatiq.actor
        def complain(_: Any) -> None:
            pass

        target = complain.message(5).asdict()
        with box.database.atomic():
            sent = outbox.send_with_options(
                charge, args=(1, [2]), kwargs={"a": {"b": None}}, max_retries=3, on_failure=complain, pipe_target=target
            )
        box.process_pending_events()
        (enqueued,) = waiting(broker)
        assert enqueued.asdict() == json.loads(json.dumps(sent.asdict())) | {"args": (1, [2])}
        assert enqueued.options == {
            "max_retries": 3,
            "on_failure": "complain",
            "pipe_target": json.loads(json.dumps(target)),
        }
        assert (enqueued.queue_name, enqueued.actor_name) == ("money", "charge")

    def test_a_class_based_actor_is_an_actor(self, box: Outbox, broker: StubBroker) -> None:
        class Charge(dramatiq.GenericActor):
            class Meta:
                actor_name = "charge_by_class"
                queue_name = "money"

            def perform(self, order: int) -> None:
                pass

        with box.database.atomic():
            outbox.send(Charge, 7)  # type: ignore[arg-type]  # Dramatiq makes an actor of the class
        box.process_pending_events()
        assert [(each.actor_name, each.args) for each in waiting(broker)] == [("charge_by_class", (7,))]

    def test_what_is_no_actor_is_refused(self, box: Outbox) -> None:
        with (
            box.database.atomic(),
            pytest.raises(outbox.InvalidEvent, match=r"decorate the function with @dramatiq\.actor"),
        ):
            outbox.send(print, 1)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("arguments", "part"),
        [
            ({"args": (1, object())}, r"args\[1\]"),
            ({"kwargs": {"when": datetime.now(UTC)}}, r"kwargs\['when'\]"),
            ({"max_age": object()}, r"the option 'max_age'"),
        ],
    )
    def test_an_argument_that_cannot_be_encoded_is_named_before_any_sql(
        self, box: Outbox, charge: Any, arguments: dict[str, Any], part: str
    ) -> None:
        with box.database.atomic():
            with pytest.raises(outbox.InvalidEvent, match=part + " of the message to charge can't be encoded"):
                outbox.send_with_options(charge, **arguments)
            Note.create(text="the transaction goes on")
        assert Note.select().count() == 1
        assert jobs() == []

    def test_a_message_over_the_limit_is_refused(self, configure: Configure, charge: Any) -> None:
        box = configure(max_payload_bytes=1_000)
        with box.database.atomic(), pytest.raises(outbox.InvalidEvent, match="OUTBOX_MAX_PAYLOAD_BYTES"):
            outbox.send(charge, "x" * 1_000)

    @pytest.mark.parametrize("value", [math.nan, math.inf, {"deep": [-math.inf]}], ids=str)
    def test_numbers_that_json_lacks_arrive_as_dramatiq_would_send_them(
        self, box: Outbox, broker: StubBroker, charge: Any, value: Any
    ) -> None:
        with box.database.atomic():
            outbox.send(charge, value)
        box.process_pending_events()
        assert repr(waiting(broker)[0].args) == repr((value,))

    def test_an_encoder_that_writes_no_json_is_stored_as_base64(
        self, box: Outbox, broker: StubBroker, charge: Any
    ) -> None:
        dramatiq.set_encoder(PickleEncoder())
        try:
            with box.database.atomic():
                outbox.send(charge, {1, 2})
            box.process_pending_events()
            assert waiting(broker)[0].args == ({1, 2},)
        finally:
            dramatiq.set_encoder(JSONEncoder())
        assert list(jobs()[0].payload) == ["outbox_base64"]

    @pytest.mark.parametrize("codec", ["utf-16", "utf-8-sig"])
    def test_json_in_another_encoding_than_utf_8_is_stored_as_base64(
        self, box: Outbox, broker: StubBroker, charge: Any, codec: str
    ) -> None:
        class Encoder(JSONEncoder):
            def encode(self, data: Any) -> bytes:
                return json.dumps(data).encode(codec)

            def decode(self, data: bytes) -> Any:
                return json.loads(data.decode(codec))

        dramatiq.set_encoder(Encoder())
        try:
            with box.database.atomic():
                outbox.send(charge, "Grüße")
            box.process_pending_events()
            assert waiting(broker)[0].args == ("Grüße",)
        finally:
            dramatiq.set_encoder(JSONEncoder())


class TestMiddleware:
    def test_before_enqueue_runs_at_the_send_and_after_enqueue_at_the_delivery(
        self, box: Outbox, broker: StubBroker, charge: Any
    ) -> None:
        class Tenant(Middleware):
            seen: list[str] = []  # noqa: RUF012  (one for the test)
            now = "acme"

            def before_enqueue(self, broker: Any, message: Any, delay: Any) -> None:
                self.seen.append("before")
                message.options["tenant"] = self.now

            def after_enqueue(self, broker: Any, message: Any, delay: Any) -> None:
                self.seen.append("after")

        broker.add_middleware(Tenant())
        with box.database.atomic():
            message = outbox.send(charge, 1)
        assert Tenant.seen == ["before"]
        Tenant.now = "another"
        box.process_pending_events()
        assert Tenant.seen == ["before", "after"]
        assert waiting(broker)[0].options == message.options == {"tenant": "acme"}

    def test_middleware_that_objects_stops_the_send_before_any_sql(
        self, box: Outbox, broker: StubBroker, charge: Any
    ) -> None:
        class Objects(Middleware):
            def before_enqueue(self, broker: Any, message: Any, delay: Any) -> None:
                raise MiddlewareError("not now")

        broker.add_middleware(Objects())
        with box.database.atomic(), pytest.raises(MiddlewareError, match="not now"):
            outbox.send(charge, 1)
        assert jobs() == []

    def test_the_row_has_the_tenant_and_correlation_of_the_callers_context(self, box: Outbox, charge: Any) -> None:
        with outbox.context(tenant_id="acme", correlation_id="c-1"), box.database.atomic():
            outbox.send(charge, 1)
        assert [(each.tenant_id, each.correlation_id) for each in jobs()] == [("acme", "c-1")]


class TestJobsAreAKindOfTheirOwn:
    def test_no_pattern_matches_a_job(self, box: Outbox, broker: StubBroker, charge: Any) -> None:
        taken: list[Any] = []
        outbox.handler("*", name="everything")(taken.append)
        outbox.handler("charge", name="of its name")(taken.append)
        with box.database.atomic():
            outbox.send(charge, 1)
        box.process_pending_events()
        assert taken == []
        assert len(waiting(broker)) == 1

    def test_an_event_with_the_name_of_an_actor_is_no_job(self, box: Outbox, broker: StubBroker, charge: Any) -> None:
        taken = []
        outbox.handler("charge")(lambda event: taken.append(event.payload))
        with box.database.atomic():
            outbox.emit("Order", 42, "charge", {"a": "payload"})
            outbox.send_with_options(charge, args=(1,), idempotency_key="Order:42")
        box.process_pending_events()
        assert taken == [{"a": "payload"}]
        assert [message.args for message in waiting(broker)] == [(1,)]
        # Each says which destinations had it, although both have the same type.
        event, job = jobs()
        assert event.kind != job.kind == JOB
        assert event.audience != job.audience

    def test_a_process_with_no_destination_does_not_end_jobs_unsent(self, box: Outbox, broker: StubBroker) -> None:
        other = StubBroker()
        outbox.transactional(other, databases=[box.database])

        @dramatiq.actor(broker=other)
        def elsewhere() -> None:
            pass

        with box.database.atomic():
            outbox.send(elsewhere)
        del other.actors["elsewhere"]  # as in a worker that lacks its module
        box.process_pending_events()
        (job,) = jobs()
        assert (job.status, job.attempts) == ("pending", 0)
        assert "waits for a worker that has 'elsewhere'" in str(job.error_message)

    def test_an_actor_as_destination_of_events_is_no_job(self, box: Outbox, broker: StubBroker, charge: Any) -> None:
        outbox.add_destination(ActorDestination(charge, events=["order.*"]))
        with box.database.atomic():
            outbox.send(charge, 1)
            outbox.emit("Order", 1, "order.placed")
        box.process_pending_events()
        assert sorted(type(message.args[0]).__name__ for message in waiting(broker)) == ["dict", "int"]


class TestABrokerThatIsNotThere:
    def test_costs_no_attempt_and_is_tried_again(self, box: Outbox) -> None:
        broker = RedisBroker(url="redis://127.0.0.1:1/0")
        dramatiq.set_broker(broker)
        try:

            @dramatiq.actor
            def charge() -> None:
                pass

            with box.database.atomic():
                outbox.send(charge)
            box.process_pending_events()
            assert [(job.status, job.attempts) for job in jobs()] == [("pending", 0)]
        finally:
            dramatiq.broker.global_broker = None

    def test_is_tried_again_every_minute_however_long_it_is_gone(self, box: Outbox) -> None:
        dramatiq.set_broker(RedisBroker(url="redis://127.0.0.1:1/0"))
        try:

            @dramatiq.actor
            def charge() -> None:
                pass

            with box.database.atomic():
                outbox.send(charge)
            waits = []
            for _ in range(8):  # the circuit breaker opens in between
                box.process_pending_events()
                (job,) = jobs()
                assert job.next_attempt_at is not None
                waits.append(job.next_attempt_at - job.updated_at)
                let_pass(minutes=2)
            assert max(waits) < timedelta(seconds=65)
        finally:
            dramatiq.broker.global_broker = None

    def test_a_worker_without_the_actor_enqueues_on_its_global_broker(
        self, box: Outbox, broker: StubBroker, charge: Any
    ) -> None:
        with box.database.atomic():
            outbox.send(charge, 1)
        del broker.actors["charge"]
        box.process_pending_events()
        assert [message.args for message in waiting(broker)] == [(1,)]

    def test_a_worker_with_another_broker_and_without_the_actor_leaves_the_job_to_others(
        self, box: Outbox, broker: StubBroker, charge: Any
    ) -> None:
        with box.database.atomic():
            outbox.send(charge, 1)
        dramatiq.set_broker(RedisBroker(url="redis://127.0.0.1:1/0"))
        box.process_pending_events()
        (job,) = jobs()
        assert (job.status, job.attempts) == ("pending", 0)
        assert "waits for a worker that has 'charge'" in str(job.error_message)

    def test_a_queue_that_no_module_has_declared_costs_no_attempt(
        self, box: Outbox, broker: StubBroker, charge: Any
    ) -> None:
        with box.database.atomic():
            outbox.send(charge, 1)
        del broker.actors["charge"], broker.queues["money"]
        box.process_pending_events()
        assert [(job.status, job.attempts) for job in jobs()] == [("pending", 0)]

    def test_an_actor_whose_broker_no_worker_could_find_is_refused(self, box: Outbox, broker: StubBroker) -> None:
        @dramatiq.actor(broker=StubBroker())
        def lost() -> None:
            pass

        with box.database.atomic(), pytest.raises(outbox.SettingsError, match=r"outbox\.transactional"):
            outbox.send(lost)


class TestDelay:
    @pytest.mark.parametrize("delay", [timedelta(days=30), 30 * 86_400_000], ids=["timedelta", "milliseconds"])
    def test_is_a_due_time_in_the_table(self, box: Outbox, broker: StubBroker, charge: Any, delay: Any) -> None:
        with box.database.atomic():
            outbox.send_with_options(charge, args=(1,), delay=delay)
        box.process_pending_events()
        assert waiting(broker) == []
        let_pass(days=30)
        box.process_pending_events()
        (message,) = waiting(broker)
        assert message.options == {}
        assert message.queue_name == "money"  # and not Dramatiq's queue of delayed messages

    def test_a_negative_one_is_refused(self, box: Outbox, charge: Any) -> None:
        with box.database.atomic(), pytest.raises(outbox.InvalidEvent, match="delay must be between zero and"):
            outbox.send_with_options(charge, delay=timedelta(seconds=-1))


class TestKeys:
    def test_a_job_with_a_key_can_be_sent_once(self, box: Outbox, charge: Any) -> None:
        with box.database.atomic():
            outbox.send_with_options(charge, args=(1,), idempotency_key="order:1")
            with pytest.raises(outbox.DuplicateEvent):
                outbox.send_with_options(charge, args=(2,), idempotency_key="order:1")
            outbox.send_with_options(charge, args=(2,), idempotency_key="order:2")
        assert len(jobs()) == 2

    def test_the_error_of_a_duplicate_speaks_of_the_job(self, box: Outbox, charge: Any) -> None:
        with box.database.atomic():
            message = outbox.send_with_options(charge, idempotency_key="order:1")
            with pytest.raises(outbox.DuplicateEvent) as caught:
                outbox.send_with_options(charge, idempotency_key="order:1")
        error = caught.value
        assert (error.event_type, error.idempotency_key) == ("charge", "order:1")
        assert str(error.existing_id) == message.message_id
        assert str(error).startswith("A job of the actor 'charge' with the idempotency key 'order:1' was already sent")
        assert "emitted" not in str(error)
        assert "UNIQUE" not in str(error)

    def test_a_choice_for_duplicates_that_does_not_exist_is_refused(self, box: Outbox, charge: Any) -> None:
        with pytest.raises(outbox.InvalidEvent, match="on_duplicate must be"):
            outbox.send_with_options(charge, on_duplicate="forget")  # type: ignore[arg-type]
        assert jobs() == []

    def test_the_message_that_exists_is_returned_if_asked(self, box: Outbox, charge: Any) -> None:
        with box.database.atomic():
            first = outbox.send_with_options(charge, args=(1,), idempotency_key="k")
            again = outbox.send_with_options(charge, args=(2,), idempotency_key="k", on_duplicate="ignore")
        assert again.asdict() == first.asdict()

    def test_the_newest_replaces_one_that_waits(self, box: Outbox, broker: StubBroker, charge: Any) -> None:
        for number in range(3):
            with box.database.atomic():
                last = outbox.send_with_options(
                    charge, args=(number,), idempotency_key="k", on_duplicate="replace", delay=timedelta(minutes=1)
                )
        box.process_pending_events()
        assert waiting(broker) == []
        let_pass(minutes=1)
        box.process_pending_events()
        assert [(message.args, message.message_id) for message in waiting(broker)] == [((2,), last.message_id)]

    def test_debouncing_works_again_and_again(self, box: Outbox, broker: StubBroker, charge: Any) -> None:
        for number in range(4):
            with box.database.atomic():
                outbox.send_with_options(charge, args=(number,), idempotency_key="k", on_duplicate="replace")
            box.process_pending_events()
        assert [message.args for message in waiting(broker)] == [(0,), (1,), (2,), (3,)]
        assert statuses() == {"delivered": 4}


class TestCancel:
    def test_by_message_by_id_and_by_key(self, box: Outbox, charge: Any) -> None:
        with box.database.atomic():
            first, second = outbox.send(charge, 1), outbox.send(charge, 2)
            outbox.send_with_options(charge, args=(3,), idempotency_key="k")
            outbox.send_with_options(charge, args=(4,), idempotency_key="l")
            assert outbox.cancel(first)
            assert outbox.cancel(second.message_id)
            assert outbox.cancel(actor=charge, idempotency_key="k")
            assert outbox.cancel(actor="charge", idempotency_key="l")
            assert not outbox.cancel(actor="charge", idempotency_key="l")
        assert jobs() == []

    @pytest.mark.parametrize("number", [0, 1])
    def test_by_the_first_message_or_by_the_newest_takes_back_what_has_replaced_it(
        self, box: Outbox, charge: Any, number: int
    ) -> None:
        with box.database.atomic():
            messages = [
                outbox.send_with_options(charge, args=(each,), idempotency_key="k", on_duplicate="replace")
                for each in range(2)
            ]
            assert outbox.cancel(messages[number])
        assert jobs() == []

    def test_not_once_it_was_enqueued(self, box: Outbox, broker: StubBroker, charge: Any) -> None:
        with box.database.atomic():
            message = outbox.send(charge, 1)
        box.process_pending_events()
        with box.database.atomic():
            assert not outbox.cancel(message)
        assert statuses() == {"delivered": 1}

    def test_an_unknown_id_is_no_error(self, box: Outbox) -> None:
        assert not outbox.cancel(uuid4())
        assert not outbox.cancel("no uuid at all")


class TestTheLog:
    def test_names_the_actor_and_the_message_of_a_job_that_failed(
        self, box: Outbox, charge: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        outbox.send(charge, 1)
        (job,) = jobs()
        change(job, payload={"no": "message"}, max_attempts=1)
        box.process_pending_events()
        (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
        assert record.getMessage().startswith(f"failed: <Job charge {job.id}>: dramatiq")
        fields = {name: getattr(record, f"outbox_{name}") for name in ("event_id", "actor", "queue", "message_id")}
        assert fields == {"event_id": job.id, "actor": "charge", "queue": "money", "message_id": job.aggregate_id}
        assert not hasattr(record, "outbox_event_type")
