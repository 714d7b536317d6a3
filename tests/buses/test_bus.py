"""The base of message brokers: a batch is published at once, and each event has the outcome that the broker told."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import outbox
from outbox.core import Outbox
from outbox.destinations.name_template import KEY_FIELDS, NameTemplate
from outbox.destinations.outcome import DELIVERED_OUTCOME, Delivered, Failed, Outcome, Retry
from outbox.destinations.protocol import Lease
from outbox.errors import Unavailable
from outbox.events.event import Event
from tests.support.program import run_python
from tests.support.servers import PATIENCE_SECONDS
from tests.support.table import claimed, deliver_all, emit, error_of, let_pass, passes, statuses
from tests.support.table import stored as row_of

Answer = Callable[[Event], Outcome | None]


@pytest.fixture
def url(sqlite_url: str) -> str:
    """The same on every database."""
    return sqlite_url


class Line:
    """A connection to a broker that is in memory."""

    def __init__(self) -> None:
        self.pid, self.is_open = os.getpid(), True
        self.batches: list[list[str]] = []


class Memory(outbox.Bus[Line]):
    """Confirms what `answer` says; None is no confirmation."""

    def __init__(self, answer: Answer = lambda _: DELIVERED_OUTCOME, **options: Any) -> None:
        super().__init__("memory", **options)
        self.answer = answer
        self.lines: list[Line] = []
        self.seconds: list[float] = []
        self.refusal: Exception | None = None

    def connect(self, seconds: float) -> Line:
        if self.refusal is not None:
            raise self.refusal
        self.lines.append(Line())
        return self.lines[-1]

    def disconnect(self, connection: Line) -> None:
        connection.is_open = False

    def is_open(self, connection: Line) -> bool:
        return connection.is_open

    def publish(self, connection: Line, events: Sequence[Event], seconds: float) -> Iterator[tuple[Event, Outcome]]:
        self.seconds.append(seconds)
        connection.batches.append([f"{event.ordering_key or ''}{event.aggregate_id}" for event in events])
        for event in events:
            outcome = self.answer(event)
            if outcome is not None:
                yield event, outcome


def raising(error: Exception) -> Answer:
    def answer(event: Event) -> Outcome:
        if event.aggregate_id == "1":
            raise error
        return DELIVERED_OUTCOME

    return answer


def deliver(bus: Memory, events: Sequence[Event], seconds: float = 60) -> list[Outcome]:
    found = dict(bus.deliver(iter(events), Lease.lasting(seconds)))
    return [found[event] for event in events]


@pytest.fixture
def three(box: Outbox) -> list[Event]:
    emit(3)
    return sorted(claimed(box).events, key=lambda event: event.seq)


class TestABatch:
    def test_is_published_at_once_and_each_event_has_its_own_outcome(self, three: list[Event]) -> None:
        answers: dict[str, Outcome] = {"0": DELIVERED_OUTCOME, "1": Retry("no"), "2": Failed("never")}
        bus = Memory(lambda event: answers[event.aggregate_id])
        assert deliver(bus, three) == list(answers.values())
        assert bus.lines[0].batches == [["0", "1", "2"]]

    def test_leaves_the_connection_open_for_the_next_one(self, three: list[Event]) -> None:
        bus = Memory()
        deliver(bus, three[:1])
        deliver(bus, three[1:])
        assert [line.batches for line in bus.lines] == [[["0"], ["1", "2"]]]

    def test_without_events_opens_no_connection(self) -> None:
        bus = Memory()
        assert (deliver(bus, []), bus.lines) == ([], [])

    def test_may_take_no_longer_than_the_lease_or_the_timeout(self, three: list[Event]) -> None:
        bus = Memory(timeout=5)
        deliver(bus, three, seconds=60)
        deliver(bus, three, seconds=2)
        assert 2 < bus.seconds[0] <= 5
        assert 0 < bus.seconds[1] <= 2


class TestSecrets:
    """A broker, or its client, may repeat what it was sent."""

    PASSWORD = "pa/ss-8f2d11"

    class Guarded(Memory):
        def secrets(self) -> list[str]:
            return [TestSecrets.PASSWORD]

    @pytest.mark.parametrize(
        "outcome",
        [
            Retry(f"refused {PASSWORD} for good", http_status=400),
            Failed(f"refused {PASSWORD} for good"),
            Unavailable(f"refused {PASSWORD} for good", http_status=503),
        ],
        ids=lambda outcome: type(outcome).__name__,
    )
    def test_are_in_no_error_of_an_outcome(self, three: list[Event], outcome: Outcome) -> None:
        (found,) = deliver(self.Guarded(lambda _: outcome), three[:1])
        assert not isinstance(found, Delivered)
        assert (type(found), found.error) == (type(outcome), "refused *** for good")
        assert found.http_status == getattr(outcome, "http_status", None)

    @pytest.mark.parametrize("error", [ValueError, OSError, outbox.Reject])
    def test_are_in_no_error_that_publish_raises(self, three: list[Event], error: type[Exception]) -> None:
        (_, found, _) = deliver(self.Guarded(raising(error(r"wrong: \"pa\/ss-8f2d11\""))), three)
        assert not isinstance(found, Delivered)
        assert "***" in found.error
        assert "8f2d11" not in found.error

    def test_are_in_no_error_of_a_connection(self, three: list[Event]) -> None:
        bus = self.Guarded()
        bus.refusal = OSError(f"no user with {self.PASSWORD}")
        (found,) = deliver(bus, three[:1])
        assert isinstance(found, Unavailable)
        assert found.error == str(found) == "could not connect: OSError: no user with ***"
        with pytest.raises(Unavailable, match=r"^OSError: no user with \*\*\*$"):
            bus.check()

    def test_without_one_in_it_the_error_of_a_check_is_the_clients_own(self) -> None:
        bus = self.Guarded()
        bus.refusal = OSError("nobody listens")
        with pytest.raises(OSError, match="nobody listens"):
            bus.check()

    def test_are_the_passwords_and_tokens_that_a_bus_was_given(self) -> None:
        rabbit = outbox.Rabbit("r", url=["amqp://u:one%2F1@h", "amqp://h"], exchange="x")
        nats = outbox.Nats("n", servers=["nats://two@h", "nats://u:three@h"], options={"token": "four", "tls": None})
        kafka = outbox.Kafka("k", bootstrap_servers="h", config={"sasl.password": "five", "sasl.mechanism": "PLAIN"})
        assert [*rabbit.secrets()] == ["one%2F1", "one/1"]
        assert {*nats.secrets()} == {"two", "three", "four"}
        assert [*kafka.secrets()] == ["five"]


class TestWhatIsNotConfirmed:
    def test_is_unavailable_and_the_next_batch_has_a_new_connection(self, three: list[Event]) -> None:
        bus = Memory(lambda event: DELIVERED_OUTCOME if event.aggregate_id == "1" else None)
        first, second, third = deliver(bus, three)
        assert second == DELIVERED_OUTCOME
        for outcome in (first, third):
            assert isinstance(outcome, Unavailable)
            assert "not confirmed within 10 s" in str(outcome)
        assert [line.is_open for line in bus.lines] == [False]
        deliver(bus, three)
        assert len(bus.lines) == 2

    @pytest.mark.parametrize(
        ("error", "kind", "text"),
        [
            (ConnectionResetError("gone"), Unavailable, "ConnectionResetError: gone"),
            (TimeoutError("slow"), Unavailable, "TimeoutError: slow"),
            (Unavailable("full"), Unavailable, "full"),
            (outbox.Reject("bad"), Failed, "Reject: bad"),
            (outbox.RetryLater(5, "later"), Retry, "later"),
            (ValueError("odd"), Retry, "ValueError: odd"),
        ],
    )
    def test_has_the_outcome_of_the_error(
        self, three: list[Event], error: Exception, kind: type[Outcome], text: str
    ) -> None:
        bus = Memory(raising(error))
        first, *others = deliver(bus, three)
        assert first == DELIVERED_OUTCOME
        for outcome in others:
            assert isinstance(outcome, kind)
            assert not isinstance(outcome, Delivered)
            assert outcome.error == text
        assert not bus.lines[0].is_open

    def test_is_unavailable_if_the_broker_can_not_be_reached(self, three: list[Event]) -> None:
        bus = Memory()
        bus.refusal = ValueError("wrong password")
        for outcome in deliver(bus, three):
            assert isinstance(outcome, Unavailable)
            assert str(outcome) == "could not connect: ValueError: wrong password"
        bus.refusal = None
        assert deliver(bus, three) == [DELIVERED_OUTCOME] * 3

    def test_costs_no_attempt_and_is_published_again(self, box: Outbox) -> None:
        bus = Memory(lambda _: None)
        outbox.add_destination(bus)
        (event,) = emit(1)
        box.process_pending_events()
        assert (row_of(event).status, row_of(event).attempts) == ("pending", 0)
        assert "not confirmed" in error_of(event)
        bus.answer = lambda _: DELIVERED_OUTCOME
        let_pass(hours=1)
        box.process_pending_events()
        assert statuses() == {"delivered": 1}


class TestTheOrderOfAKey:
    def test_holds_back_no_other_key(self, box: Outbox) -> None:
        bus = Memory(lambda event: None if (event.ordering_key, event.aggregate_id) == ("a", "1") else Delivered())
        outbox.add_destination(bus)
        with box.database.atomic():
            emit(3, ordering_key="a")
            emit(3, ordering_key="b")
            emit(1)
        box.process_pending_events()
        published = [sorted(batch) for line in bus.lines for batch in line.batches]
        assert published == [["0", "a0", "b0"], ["a1", "b1"], ["b2"]]
        assert statuses() == {"delivered": 5, "pending": 2}
        bus.answer = lambda _: DELIVERED_OUTCOME
        let_pass(hours=1)
        deliver_all(box)
        assert [batch for line in bus.lines for batch in line.batches][3:] == [["a1"], ["a2"]]


class TestTheConnection:
    def test_is_one_for_all_threads_even_if_they_need_it_at_the_same_time(self, three: list[Event]) -> None:
        bus, together = Memory(), threading.Barrier(8, timeout=PATIENCE_SECONDS)

        def publish(_: int) -> list[Outcome]:
            together.wait()
            return deliver(bus, three)

        with ThreadPoolExecutor(8) as executor:
            assert list(executor.map(publish, range(8))) == [[DELIVERED_OUTCOME] * 3] * 8
        assert len(bus.lines) == 1

    def test_is_opened_again_if_it_was_closed_meanwhile(self, three: list[Event]) -> None:
        bus = Memory()
        deliver(bus, three)
        bus.lines[0].is_open = False
        assert deliver(bus, three) == [DELIVERED_OUTCOME] * 3
        assert len(bus.lines) == 2

    def test_of_another_thread_is_not_closed_when_an_older_one_has_failed(self, three: list[Event]) -> None:
        published, go_on = threading.Event(), threading.Event()

        def answer(event: Event) -> Outcome | None:
            if threading.current_thread() is not threading.main_thread():
                published.set()
                passes(go_on)
                return None
            return DELIVERED_OUTCOME

        bus = Memory(answer)
        with ThreadPoolExecutor(1) as executor:
            late = executor.submit(deliver, bus, three[:1])
            passes(published)
            bus.close()
            deliver(bus, three)
            go_on.set()
            late.result()
        assert [line.is_open for line in bus.lines] == [False, True]

    def test_of_the_parent_is_not_touched_by_a_forked_child(self, three: list[Event]) -> None:
        bus = Memory()
        deliver(bus, three)
        child = os.fork()
        if child == 0:  # pragma: no cover
            ok = deliver(bus, three) == [DELIVERED_OUTCOME] * 3
            pids = [line.pid for line in bus.lines]
            ok = ok and pids == [os.getppid(), os.getpid()] and bus.lines[0].is_open
            os._exit(0 if ok else 1)
        assert os.waitpid(child, 0)[1] == 0

    def test_of_the_parent_is_never_deleted_in_a_forked_child(self) -> None:
        """Deleting it may close the parent's connection, or wait for threads that only the parent has (librdkafka)."""
        said = run_python(
            "import gc, os\n"
            "import outbox\n"
            "class Line:\n"
            "    def __init__(self): self.pid = os.getpid()\n"
            "    def __del__(self): print('deleted', self.pid == os.getpid(), flush=True)\n"
            "class Bus(outbox.Bus):\n"
            "    def connect(self, seconds): return Line()\n"
            "    def publish(self, connection, events, seconds): return []\n"
            "bus = Bus('bus')\n"
            "bus.check()\n"
            "if os.fork() == 0:\n"
            "    bus.check()\n"
            "    gc.collect()\n"
            "else:\n"
            "    os.wait()\n"
        )
        assert said == "deleted True\ndeleted True\n"

    def test_can_be_opened_in_a_child_that_was_forked_while_a_thread_was_connecting(self, three: list[Event]) -> None:
        connecting, go_on = threading.Event(), threading.Event()

        class Slow(Memory):
            def connect(self, seconds: float) -> Line:
                if threading.current_thread() is not threading.main_thread():
                    connecting.set()
                    passes(go_on)
                return super().connect(seconds)

        bus = Slow()
        with ThreadPoolExecutor(1) as executor:
            slow = executor.submit(deliver, bus, three)
            passes(connecting)
            child = os.fork()
            if child == 0:  # pragma: no cover
                # An inherited lock would never be released here: only a thread of the parent would do that.
                signal.alarm(PATIENCE_SECONDS)
                os._exit(0 if deliver(bus, three) == [DELIVERED_OUTCOME] * 3 else 1)
            status = os.waitpid(child, 0)[1]
            go_on.set()
            assert status == 0
            assert slow.result() == [DELIVERED_OUTCOME] * 3

    def test_is_closed_when_the_process_ends(self) -> None:
        said = run_python(
            "import outbox\n"
            "class Bus(outbox.Bus):\n"
            "    def connect(self, seconds): return object()\n"
            "    def publish(self, connection, events, seconds): return []\n"
            "    def disconnect(self, connection): print('closed')\n"
            "bus = Bus('bus')\n"
            "bus.check()\n"
        )
        assert said == "closed\n"


class TestParameters:
    @pytest.mark.parametrize(
        ("wrong", "text"),
        [
            ({"timeout": 0}, "timeout must be"),
            ({"timeout": float("inf")}, "timeout must be"),
            ({"timeout": True}, "timeout must be"),
            ({"events": []}, "events is empty"),
            ({"concurrency": 0}, "concurrency must be"),
            ({"per_second": -1}, "per_second must be"),
            ({"on_failed": "stop"}, "on_failed"),
        ],
    )
    def test_are_checked(self, wrong: dict[str, Any], text: str) -> None:
        with pytest.raises(outbox.RegistrationError, match=text):
            Memory(**wrong)

    def test_need_a_name(self) -> None:
        class Unnamed(Memory):
            def __init__(self) -> None:
                outbox.Bus.__init__(self, " ")

        with pytest.raises(outbox.RegistrationError, match="The name of a Unnamed must be text"):
            Unnamed()


class TestAKey:
    def test_is_none_if_the_event_lacks_a_field_of_it(self, box: Outbox) -> None:
        emit(1)
        emit(1, ordering_key="order:7")
        without, with_key = sorted(claimed(box).events, key=lambda event: event.seq)
        key = NameTemplate("{ordering_key}/{event_type}", "key", KEY_FIELDS)
        assert (key.render_key(without), key.render_key(with_key)) == (None, "order:7/order.placed")
        assert NameTemplate("fixed", "key", KEY_FIELDS).render_key(without) == "fixed"
