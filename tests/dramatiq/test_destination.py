"""An actor as a destination: each event is one message, and a batch is one round trip to Redis."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import dramatiq
import pytest
import redis
from dramatiq.broker import Broker
from dramatiq.brokers.redis import RedisBroker
from dramatiq.brokers.stub import StubBroker
from dramatiq.errors import ConnectionClosed
from dramatiq.middleware import Middleware, MiddlewareError

import outbox
from outbox.core import Outbox
from outbox.destinations.outcome import DELIVERED_OUTCOME, Outcome, Retry
from outbox.destinations.protocol import Lease
from outbox.dramatiq import ActorDestination
from outbox.dramatiq.redis_broker import OutboxRedisBroker
from outbox.events.envelope import as_dict
from outbox.events.event import Event
from tests.dramatiq.conftest import close, make_broker
from tests.support.flights import flights
from tests.support.processes import Stage
from tests.support.servers import RedisServer
from tests.support.table import another, claimed, emit, let_pass, statuses, stored

BAD = 2  # the number of the event that something is wrong with


def make_actor(broker: Broker, name: str = "index", **options: Any) -> dramatiq.Actor[Any, Any]:
    @dramatiq.actor(broker=broker, actor_name=name, **options)
    def index(event: dict[str, Any]) -> None:
        pass

    return index


def deliver(actor: dramatiq.Actor[Any, Any], events: list[Event]) -> list[Outcome]:
    """Return the outcomes, in the order of the events."""
    found = dict(ActorDestination(actor).deliver(iter(events), Lease.lasting(60)))
    return [found[event] for event in events]


def waiting(broker: Any, queue: str = "default") -> list[dramatiq.Message[Any]]:
    """Return the messages in a queue, in their order."""
    key = f"{broker.namespace}:{queue}"
    texts = [broker.client.hget(f"{key}.msgs", id) for id in broker.client.lrange(key, 0, -1)]
    return [dramatiq.Message.decode(text) for text in texts]


def numbers(messages: list[dramatiq.Message[Any]]) -> list[int]:
    return [int(message.args[0]["aggregate_id"]) for message in messages]


@pytest.fixture
def events(box: Outbox) -> list[Event]:
    """Return five claimed events, numbered from 0."""
    emit(5)
    return sorted(claimed(box).events, key=lambda event: event.seq)


class Witness(Middleware):
    """Middleware that records the calls before and after enqueueing, and may raise for one event."""

    def __init__(self, objection: Exception | None = None) -> None:
        self.seen: list[tuple[str, int, Any]] = []
        self._objection = objection

    def before_enqueue(self, broker: Broker, message: Any, delay: Any) -> None:
        number = int(message.args[0]["aggregate_id"])
        self.seen.append(("before", number, delay))
        if number == BAD and self._objection is not None:
            raise self._objection

    def after_enqueue(self, broker: Broker, message: Any, delay: Any) -> None:
        self.seen.append(("after", int(message.args[0]["aggregate_id"]), delay))


class TestOnRedis:
    @pytest.fixture(params=["ours", "dramatiq's"])
    def broker(self, request: pytest.FixtureRequest, broker: OutboxRedisBroker) -> Iterator[RedisBroker]:
        if request.param == "ours":
            yield broker
        else:
            plain = RedisBroker(client=broker.client, namespace=broker.namespace)
            yield plain
            plain.flush_all()

    def test_each_event_is_a_message_with_the_envelope_on_the_actors_own_queue(
        self, broker: RedisBroker, events: list[Event]
    ) -> None:
        actor = make_actor(broker, queue_name="index")
        assert deliver(actor, events) == [DELIVERED_OUTCOME] * 5
        messages = waiting(broker, "index")
        assert [message.args for message in messages] == [(as_dict(event),) for event in events]
        assert {(message.actor_name, json.dumps(message.kwargs)) for message in messages} == {("index", "{}")}

    def test_a_message_is_what_enqueue_would_have_made_of_it(self, broker: RedisBroker, events: list[Event]) -> None:
        actor = make_actor(broker)
        deliver(actor, events[:1])
        actor.send(as_dict(events[0]))
        ours, theirs = ({**message.asdict(), "message_id": "", "message_timestamp": 0} for message in waiting(broker))
        assert ours["options"].pop("redis_message_id") != theirs["options"].pop("redis_message_id")
        assert ours == theirs

    def test_the_number_of_events_does_not_change_the_number_of_round_trips(
        self, broker: RedisBroker, events: list[Event]
    ) -> None:
        actor = make_actor(broker)
        deliver(actor, events)  # connects, and loads the script
        trips = []
        for batch in (events[:1], events * 20):
            with flights() as sent:
                deliver(actor, batch)
            trips.append(len(sent))
        assert trips == [2, 2]  # whether Redis has the script, and the messages
        assert len(waiting(broker)) == 5 + 1 + 100

    def test_a_redis_that_has_forgotten_the_script_is_given_it_again(
        self, broker: RedisBroker, events: list[Event]
    ) -> None:
        actor = make_actor(broker)
        broker.client.script_flush()
        assert deliver(actor, events) == [DELIVERED_OUTCOME] * 5
        assert len(waiting(broker)) == 5

    def test_one_that_forgets_it_in_between_costs_no_attempt(
        self, broker: RedisBroker, events: list[Event], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        actor = make_actor(broker)
        deliver(actor, events)
        broker.client.script_flush()
        monkeypatch.setattr(redis.client.Pipeline, "load_scripts", lambda _: None)
        assert all(isinstance(outcome, outbox.Unavailable) for outcome in deliver(actor, events))

    def test_middleware_hears_of_every_message(self, broker: RedisBroker, events: list[Event]) -> None:
        witness = Witness()
        broker.add_middleware(witness)
        deliver(make_actor(broker), events)
        assert Counter(witness.seen) == Counter((what, n, None) for n in range(5) for what in ("before", "after"))

    def test_middleware_that_refuses_a_message_refuses_no_other(self, broker: RedisBroker, events: list[Event]) -> None:
        witness = Witness(MiddlewareError("not this one"))
        broker.add_middleware(witness)
        assert_only_the_bad_one_is_retried(deliver(make_actor(broker), events), "not this one")
        assert numbers(waiting(broker)) == [0, 1, 3, 4]
        assert [n for what, n, _ in witness.seen if what == "after"] == [0, 1, 3, 4]

    def test_a_message_that_can_not_be_encoded_is_its_own_affair(
        self, broker: RedisBroker, events: list[Event], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dramatiq.message, "global_encoder", PickyEncoder())
        assert_only_the_bad_one_is_retried(deliver(make_actor(broker), events), "not this one")
        assert numbers(waiting(broker)) == [0, 1, 3, 4]

    def test_an_event_that_can_not_be_read_is_its_own_affair(self, broker: RedisBroker, events: list[Event]) -> None:
        events[BAD]._payload_text = "nonsense"
        assert_only_the_bad_one_is_retried(deliver(make_actor(broker), events), "JSONDecodeError")
        assert numbers(waiting(broker)) == [0, 1, 3, 4]

    def test_what_redis_refuses_is_tried_again(self, broker: RedisBroker, events: list[Event]) -> None:
        witness = Witness()
        broker.add_middleware(witness)
        broker.client.set(f"{broker.namespace}:default", "no queue")
        outcomes = deliver(make_actor(broker), events)
        broker.client.delete(f"{broker.namespace}:default")
        assert all(isinstance(outcome, Retry) and "WRONGTYPE" in outcome.error for outcome in outcomes)
        assert {what for what, _, _ in witness.seen} == {"before"}


class PickyEncoder(dramatiq.JSONEncoder):
    def encode(self, data: Any) -> bytes:
        if data["args"][0]["aggregate_id"] == str(BAD):
            raise ValueError("not this one")
        return super().encode(data)


def assert_only_the_bad_one_is_retried(outcomes: list[Outcome], error: str) -> None:
    bad = outcomes.pop(BAD)
    assert isinstance(bad, Retry)
    assert error in bad.error
    assert outcomes == [DELIVERED_OUTCOME] * 4


class TestARedisThatIsLost:
    @pytest.fixture
    def broker(self, own_redis: RedisServer) -> Iterator[OutboxRedisBroker]:
        """Return a broker with short response timeouts."""
        broker = make_broker(own_redis.url)
        broker.client.connection_pool.connection_kwargs["socket_timeout"] = 0.3
        yield broker
        close(broker)

    @pytest.mark.parametrize("known", [True, False], ids=["known before", "never met"])
    @pytest.mark.parametrize("lose", [RedisServer.kill, RedisServer.pause], ids=["killed", "paused"])
    def test_costs_no_attempt_and_one_wait_and_all_is_delivered_later(
        self,
        box: Outbox,
        broker: OutboxRedisBroker,
        own_redis: RedisServer,
        lose: Callable[[RedisServer], None],
        monkeypatch: pytest.MonkeyPatch,
        *,
        known: bool,
    ) -> None:
        monkeypatch.setattr(OutboxRedisBroker, "_max_unpack_size_val", 100 if known else None)
        outbox.add_destination(ActorDestination(make_actor(broker)))
        events = emit(5)
        lose(own_redis)
        with flights() as sent:
            box.process_pending_events()
        assert len(sent) < 5  # not as many times as there are events
        assert [(stored(event).status, stored(event).attempts) for event in events] == [("pending", 0)] * 5
        own_redis.stop()
        own_redis.start()
        let_pass(hours=2)
        another(box).process_pending_events()
        assert statuses() == {"delivered": 5}
        assert sorted(numbers(waiting(broker))) == [0, 1, 2, 3, 4]


class TestOnAnotherBroker:
    def test_messages_are_enqueued_one_after_the_other(self, events: list[Event]) -> None:
        broker = StubBroker()
        assert deliver(make_actor(broker), events) == [DELIVERED_OUTCOME] * 5
        messages = [dramatiq.Message.decode(text) for text in broker.queues["default"].queue]
        assert [message.args for message in messages] == [(as_dict(event),) for event in events]

    def test_what_is_wrong_with_one_concerns_no_other(self, events: list[Event]) -> None:
        broker = StubBroker(middleware=[Witness(MiddlewareError("not this one"))])
        assert_only_the_bad_one_is_retried(deliver(make_actor(broker), events), "not this one")

    def test_once_the_connection_is_lost_nothing_more_is_tried(self, events: list[Event]) -> None:
        broker = LosingBroker()
        *sent, third, fourth, fifth = deliver(make_actor(broker), events)
        assert sent == [DELIVERED_OUTCOME] * 2
        assert all(isinstance(outcome, outbox.Unavailable) for outcome in (third, fourth, fifth))
        assert broker.tried == 3

    def test_a_redis_broker_that_enqueues_in_its_own_way_is_left_to_it(
        self, broker: OutboxRedisBroker, events: list[Event]
    ) -> None:
        own: Any = own_kind(client=broker.client, namespace=broker.namespace)
        assert deliver(make_actor(own), events) == [DELIVERED_OUTCOME] * 5
        assert own.enqueued == 5
        own.flush_all()

    def test_a_redis_broker_of_that_kind_may_be_lost_as_well(self, events: list[Event]) -> None:
        own: Any = own_kind(url="redis://127.0.0.1:1/0")
        assert all(isinstance(outcome, outbox.Unavailable) for outcome in deliver(make_actor(own), events))
        assert own.enqueued == 1


class LosingBroker(StubBroker):
    """A broker that loses its server when the bad event is enqueued."""

    tried = 0

    def enqueue(self, message: Any, *, delay: Any = None) -> Any:
        self.tried += 1
        if numbers([message]) == [BAD]:
            raise ConnectionClosed("gone")
        return super().enqueue(message, delay=delay)


class OwnRedisBroker(RedisBroker):
    enqueued = 0

    def enqueue(self, message: Any, *, delay: Any = None) -> Any:
        self.enqueued += 1
        return super().enqueue(message, delay=delay)


own_kind: Any = OwnRedisBroker  # whose __init__, Dramatiq's, carries no types


class TestMakingOne:
    def test_the_name_is_the_actors_unless_one_is_given(self) -> None:
        actor = make_actor(StubBroker(), "index_order")
        assert ActorDestination(actor).name == "actor:index_order"
        assert ActorDestination(actor, name="index").name == "index"
        assert repr(ActorDestination(actor)) == "<ActorDestination 'actor:index_order' to 'index_order'>"

    def test_it_wants_the_types_and_has_the_limits_that_it_was_given(self) -> None:
        destination = ActorDestination(
            make_actor(StubBroker()), events=["order.*", "user.created"], concurrency=3, per_second=0.5
        )
        assert destination.events == ("order.*", "user.created")
        assert ActorDestination(destination.actor).events == ("*",)
        assert destination.limits == outbox.Limits(3, 0.5)

    @pytest.mark.parametrize("what", [len, "index", None, StubBroker])
    def test_what_is_no_actor_is_refused(self, what: Any) -> None:
        with pytest.raises(outbox.RegistrationError, match="is not an actor"):
            ActorDestination(what)

    def test_an_actor_that_can_not_take_the_envelope_is_refused(self) -> None:
        @dramatiq.actor(broker=StubBroker())
        def without() -> None:
            pass

        @dramatiq.actor(broker=StubBroker())
        def with_two(event: Any, other: Any) -> None:
            pass

        for actor in (without, with_two):
            with pytest.raises(outbox.RegistrationError, match=f"{actor.actor_name} can't be called with one"):
                ActorDestination(actor)

    @pytest.mark.parametrize("wrong", [{"events": []}, {"events": "order.*"}, {"concurrency": 0}, {"per_second": 0}])
    def test_wrong_arguments_are_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(outbox.RegistrationError):
            ActorDestination(make_actor(StubBroker()), **wrong)


def test_real_workers_get_each_event_once_with_its_envelope(stage: Stage) -> None:
    ids = stage.emit(300, do="pass", text="Žofia ☃")
    stage.worker("tests.apps.indexer", processes=2)
    stage.scheduler()
    stage.wait_until_all("delivered")
    stage.wait_for(lambda: len(stage.entries("indexed")) >= 300, "the actor has had all of them")
    indexed = stage.entries("indexed")
    assert Counter(entry.id for entry in indexed) == Counter(ids)
    envelopes = [json.loads(entry.body) for entry in indexed]
    assert {envelope["type"] for envelope in envelopes} == {"test.emitted"}
    assert [envelope["data"] for envelope in envelopes] == [{"do": "pass", "text": "Žofia ☃"}] * 300
    assert sorted(int(envelope["aggregate_id"]) for envelope in envelopes) == list(range(300))
