"""Dramatiq's actors: decorated with `outbox.inbox.once`, a message that is redelivered has no second effect."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker
from dramatiq.results import Results
from dramatiq.results.backends.stub import StubBackend

import outbox
from outbox.core import Outbox
from outbox.dramatiq import message_id
from outbox.dramatiq.broker import install_middleware
from outbox.inbox.once_decorator import SKIPPED
from tests.conftest import Note
from tests.inbox.effects import inbox_rows, notes
from tests.support.processes import BIN, Program, Stage

ACTORS = "tests.apps.idempotent"
HARMED = "tests.apps.retried"
QUEUES = ("index", "start", "charge")


@pytest.fixture
def stage(stage: Stage) -> Stage:
    with stage.box.dialect.connection():
        stage.box.dialect.run("CREATE TABLE effect (id serial PRIMARY KEY, what text)")
    for queue in QUEUES:
        stage.broker.declare_queue(queue)
    return stage


def effects(stage: Stage) -> Counter[str]:
    with stage.box.dialect.connection():
        return Counter(what for (what,) in stage.box.dialect.run("SELECT what FROM effect").fetchall())


def count_inbox_rows(stage: Stage) -> int:
    with stage.box.dialect.connection():
        (count,) = stage.box.dialect.run("SELECT count(*) FROM inbox").fetchone()
    return int(count)


class TestARealWorker:
    def test_has_one_effect_for_each_event_however_often_its_envelope_comes(self, stage: Stage) -> None:
        ids = stage.emit(20)
        worker = stage.worker(ACTORS)
        stage.scheduler()
        stage.wait_until_all("delivered")
        send(stage, "index", *({"id": str(id), "type": "test.emitted"} for id in ids), times=3)
        self.assert_effects(stage, worker.said, [str(id) for id in ids])

    def test_has_one_effect_for_each_command_however_often_it_is_sent(self, stage: Stage) -> None:
        send(stage, "start", *({"name": "import", "command_id": f"c-{n}"} for n in range(10)), times=3)
        worker = stage.worker(ACTORS)
        self.assert_effects(stage, worker.said, [f"import c-{n}" for n in range(10)])

    def assert_effects(self, stage: Stage, said: Any, expected: list[str]) -> None:
        stage.wait_for(lambda: waiting(stage) == 0, "all messages are dealt with")
        assert effects(stage) == Counter(expected)
        assert count_inbox_rows(stage) == len(expected)
        assert "Failed to process" not in said()


class TestAnActorThatIsInterrupted:
    """On a broker of the application's own, which hands a dead worker's messages on after a second."""

    def worker(self, stage: Stage) -> Program:
        return stage.start("worker", BIN / "dramatiq", HARMED, "-p", "1", "-t", "2", ready="ready for action")

    def charge(self, stage: Stage, **command: Any) -> None:
        send(stage, "charge", {"command_id": "c-1", **command}, times=1)

    def test_after_its_effect_is_tried_again_and_has_it_once(self, stage: Stage) -> None:
        self.charge(stage, do="fail", times=2)
        worker = self.worker(stage)
        stage.wait_for(lambda: waiting(stage) == 0, "the message is dealt with")
        assert worker.said().count("failed c-1") == 2
        assert (effects(stage), count_inbox_rows(stage)) == ({"c-1": 1}, 1)
        assert "skipped" not in worker.said()

    def test_by_being_killed_in_the_middle_leaves_nothing_and_another_worker_does_it(self, stage: Stage) -> None:
        gate = stage.gate()
        self.charge(stage, do="wait", gate=str(gate))
        killed = self.worker(stage)
        stage.wait_for(lambda: "waiting c-1" in killed.said(), "the actor is in the middle")
        killed.kill()
        assert (effects(stage), count_inbox_rows(stage)) == ({}, 0)
        gate.touch()
        other = self.worker(stage)
        stage.wait_for(lambda: waiting(stage) == 0, "the message is dealt with")
        assert "waiting c-1" in other.said()
        assert (effects(stage), count_inbox_rows(stage)) == ({"c-1": 1}, 1)

    def test_by_being_killed_after_its_commit_is_skipped_by_the_next_worker(self, stage: Stage) -> None:
        gate = stage.gate()
        self.charge(stage, do="linger", gate=str(gate))
        killed = self.worker(stage)
        stage.wait_for(lambda: "committed c-1" in killed.said(), "the actor has committed")
        killed.kill()
        assert (effects(stage), waiting(stage)) == ({"c-1": 1}, 1)
        gate.touch()
        other = self.worker(stage)
        stage.wait_for(lambda: waiting(stage) == 0, "the message is dealt with")
        assert "Skipped: charge has processed message c-1 before" in other.said()
        assert (effects(stage), count_inbox_rows(stage)) == ({"c-1": 1}, 1)


def send(stage: Stage, actor: str, *items: dict[str, Any], times: int) -> None:
    """Messages for an actor, whose queue is called like it: an envelope is its argument, a command its arguments."""
    for item in items * times:
        args, kwargs = ((), item) if "command_id" in item else ((item,), {})
        message: dramatiq.Message[Any] = dramatiq.Message(
            queue_name=actor, actor_name=actor, args=args, kwargs=kwargs, options={}
        )
        stage.broker.enqueue(message)


def waiting(stage: Stage) -> int:
    """How many messages are in the queues, under way, or about to be tried again."""
    with stage.broker.client.pipeline(transaction=True) as look:  # all at once: a message moves from one to another
        for queue in QUEUES:
            look.hlen(f"{stage.settings.namespace}:{queue}.msgs")
            look.hlen(f"{stage.settings.namespace}:{queue}.DQ.msgs")
        return sum(look.execute())


class TestTheMessagesId:
    """A job may be enqueued twice after a crash: the inbox knows it by the id of its message."""

    @pytest.fixture
    def broker(self, box: Outbox) -> Iterator[StubBroker]:
        broker = StubBroker()
        dramatiq.set_broker(broker)
        yield outbox.transactional(broker, databases=[box.database])
        dramatiq.broker.global_broker = None

    def test_a_message_that_is_enqueued_twice_has_one_effect(self, box: Outbox, broker: StubBroker) -> None:
        @dramatiq.actor
        @outbox.inbox.once("charge", key=message_id)
        def charge(order: int) -> None:
            Note.create(text=f"order {order}")

        with box.database.atomic():
            message = outbox.send(charge, 1)
            outbox.send(charge, 1)  # another message, with the same arguments
        box.process_pending_events()
        broker.queues["default"].put(message.encode())  # once more, as after a crash
        worker = dramatiq.Worker(broker, worker_timeout=10)
        worker.start()
        try:
            broker.join("default")
        finally:
            worker.stop()
        assert notes() == ["order 1", "order 1"]
        assert (message.message_id, "charge") in inbox_rows()

    def test_a_direct_call_has_none(self, broker: StubBroker) -> None:
        @dramatiq.actor
        @outbox.inbox.once("charge", key=message_id)
        def charge() -> None: ...

        with pytest.raises(outbox.InvalidMessage, match="no current Dramatiq message"):
            charge()


@pytest.mark.parametrize("first", ["actor", "middleware"])
def test_to_dramatiq_an_actor_that_was_skipped_has_returned_nothing(
    box: Outbox, caplog: pytest.LogCaptureFixture, first: str
) -> None:
    broker = StubBroker()
    broker.add_middleware(Results(backend=StubBackend()))
    if first == "middleware":
        install_middleware(broker)

    @outbox.inbox.once("index")
    def index(event: dict[str, Any]) -> str:
        """Into the index."""
        Note.create(text=event["id"])
        return "indexed"

    actor = dramatiq.actor(broker=broker, store_results=True)(index)
    install_middleware(broker)
    assert actor.fn.__doc__ == "Into the index."
    assert index({"id": "direct"}) == "indexed"
    assert index({"id": "direct"}) is SKIPPED

    outbox.handler("*", name="anyone")(print)  # a worker wants to have something to do
    worker = dramatiq.Worker(broker, worker_timeout=10)
    worker.start()
    try:
        messages = [actor.send({"id": "m-1"}) for _ in range(2)]
        broker.join("default")
        results = [message.get_result(backend=broker.get_results_backend(), block=True) for message in messages]
    finally:
        worker.stop()
    assert Counter(results) == Counter(["indexed", None])
    assert (notes(), inbox_rows()) == (["direct", "m-1"], [("direct", "index"), ("m-1", "index")])
    assert not [
        record for record in caplog.records if record.name.startswith("dramatiq") and record.levelname != "INFO"
    ]


def test_an_actor_without_the_inbox_is_left_as_it_is() -> None:
    broker = StubBroker()
    install_middleware(broker)

    def plain(event: object) -> None: ...

    assert dramatiq.actor(broker=broker)(plain).fn is plain
