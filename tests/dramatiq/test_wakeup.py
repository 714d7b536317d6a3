"""Wake-ups: in every order of steps, some worker claims after an event's commit.

`send_wakeup_once` and `clear_flag_then` run here as they are, each in a thread that takes one step when it is told to;
a step is one operation on the table, the flag or the queue. So every order in which two emitters and a worker can take
their steps is tried.
"""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import dramatiq
import dramatiq.broker
import pytest
import redis
from dramatiq.brokers.stub import StubBroker

from outbox.core import Outbox
from outbox.dramatiq import wakeup
from outbox.dramatiq.actor_names import DELIVER
from outbox.dramatiq.in_process_broker import InProcessBroker
from outbox.dramatiq.redis_broker import OutboxRedisBroker
from outbox.dramatiq.wakeup import clear_flag_then, flag_for, send_wakeup_once
from outbox.dramatiq.wakeup_flag import (
    ENOUGH_WAITING,
    INTERVAL_SECONDS,
    SLOW_INTERVAL_SECONDS,
    LocalFlag,
    MinimumInterval,
    RedisFlag,
)
from tests.support.processes import MakeStage, Stage
from tests.support.servers import wait_until


class Died(BaseException):
    """The process has died: it takes no further step."""


class Unsendable(Exception):
    """Redis does not take the message."""


class Walker:
    """A thread that takes a step when it is told to."""

    def __init__(self, walk: Callable[["Walker"], None]) -> None:
        self._may_step = threading.Semaphore(0)
        self._stands = threading.Semaphore(0)
        self._dead = False
        self.done = False
        self._thread = threading.Thread(target=self._run, args=(walk,), daemon=True)
        self._thread.start()
        self._stands.acquire()

    def _run(self, walk: Callable[["Walker"], None]) -> None:
        try:
            walk(self)
        except (Died, Unsendable):
            pass  # the ways to end that the test asked for
        finally:
            self.done = True
            self._stands.release()

    def before_step(self) -> None:
        """Called by the thread before each of its steps."""
        if not self._dead:
            self._stands.release()
            self._may_step.acquire()
        if self._dead:
            raise Died

    def step(self) -> None:
        """Let the thread take one step, and wait until it is about to take the next."""
        self._may_step.release()
        self._stands.acquire()

    def die(self) -> None:
        if not self.done:
            self._dead = True
            self.step()


class World:
    """A table, a flag, a queue; two emitters and a worker."""

    def __init__(self, *, unsendable: tuple[int, ...] = ()) -> None:
        self.flag = LocalFlag()
        self.queue = 0
        self.sent = 0
        self.committed: set[int] = set()
        self.seen: set[int] = set()
        self._unsendable = unsendable
        self.emitters = [Walker(lambda walker, n=n: self.emit(n, walker)) for n in (1, 2)]  # type: ignore[misc]
        self.worker: Walker | None = None

    def emit(self, event: int, walker: Walker) -> None:
        walker.before_step()
        self.committed.add(event)

        def send() -> None:
            walker.before_step()
            if event in self._unsendable:
                raise Unsendable
            self.send()

        send_wakeup_once(SteppedFlag(self.flag, walker), send)

    def work(self, walker: Walker) -> None:
        def look() -> None:
            walker.before_step()
            self.seen |= self.committed

        clear_flag_then(SteppedFlag(self.flag, walker), look)

    def ready(self) -> list[Walker]:
        """Return the threads that can take a step now."""
        if self.worker is not None and self.worker.done:
            self.worker = None
        if self.worker is None and self.queue:
            self.queue -= 1
            self.worker = Walker(self.work)
        walkers = [*self.emitters, self.worker]
        return [walker for walker in walkers if walker is not None and not walker.done]

    def finish(self) -> None:
        while walkers := self.ready():
            walkers[0].step()

    def notify(self, event: int) -> None:
        """Commit once more, and take all steps of that emitter at once."""
        self.committed.add(event)
        send_wakeup_once(self.flag, self.send)

    def send(self) -> None:
        self.queue += 1
        self.sent += 1


class SteppedFlag(LocalFlag):
    """A flag for which setting and clearing are each one step of the thread."""

    def __init__(self, flag: LocalFlag, walker: Walker) -> None:
        super().__init__()
        self._flag = flag
        self._walker = walker

    def try_set(self) -> bool:
        self._walker.before_step()
        return self._flag.try_set()

    def clear(self) -> None:
        self._walker.before_step()
        self._flag.clear()


def every_order(make_world: Callable[[], World], deaths: int = 0) -> Iterator[World]:
    """Yield a world for each order of steps, after its last step. Up to `deaths` emitters die instead of a step."""
    choices: list[tuple[int, int]] = []  # which was taken, of how many
    while True:
        world = make_world()
        left = deaths
        depth = 0
        while walkers := world.ready():
            options: list[Callable[[], None]] = [walker.step for walker in walkers]
            if left:
                options += [walker.die for walker in walkers if walker is not world.worker]
            if depth == len(choices):
                choices.append((0, len(options)))
            taken = options[choices[depth][0]]
            left -= taken.__name__ == "die"
            taken()
            depth += 1
        yield world
        while choices and choices[-1][0] + 1 == choices[-1][1]:
            choices.pop()
        if not choices:
            return
        choices[-1] = (choices[-1][0] + 1, choices[-1][1])


class TestInEveryOrder:
    def test_a_committed_event_is_looked_at_after_its_commit(self) -> None:
        sent = set()
        for world in every_order(World):
            assert world.seen == world.committed == {1, 2}
            sent.add(world.sent)
        assert sent == {1, 2}  # messages: one for both, or one for each

    @pytest.mark.parametrize("unsendable", [(1,), (1, 2)])
    def test_sending_that_fails_leaves_the_next_one_free_to_send(self, unsendable: tuple[int, ...]) -> None:
        for world in every_order(lambda: World(unsendable=unsendable)):
            world.notify(3)
            world.finish()
            assert world.seen == {1, 2, 3}

    def test_whoever_dies_a_sweep_finds_what_was_committed(self) -> None:
        for world in every_order(World, deaths=2):
            world.send()  # as a sweep does, without a look at the flag
            world.finish()
            assert world.seen == world.committed

    def test_whoever_dies_the_next_one_is_heard_once_the_flag_has_expired(self) -> None:
        for world in every_order(World, deaths=2):
            world.flag.clear()
            world.notify(3)
            world.finish()
            assert world.seen == world.committed


def test_a_flag_that_can_not_be_cleared_does_not_keep_the_worker_from_draining(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(LocalFlag):
        def clear(self) -> None:
            raise redis.ConnectionError("gone")

    looks: list[str] = []
    clear_flag_then(Broken(), lambda: looks.append("looked"))
    assert looks == ["looked"]
    assert "Could not clear the wake-up flag: gone." in caplog.text


@pytest.mark.parametrize(
    ("broker", "reason"),
    [
        (InProcessBroker(), "OUTBOX_REDIS_URL is not set, no broker is set"),
        (StubBroker(), "the broker that is set is a StubBroker"),
    ],
)
def test_an_emitter_whose_broker_reaches_no_other_process_is_told_which_broker_that_is(
    box: Outbox, broker: dramatiq.Broker, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dramatiq.broker, "global_broker", broker)
    with pytest.raises(wakeup.NoWorkerReachable, match=reason):
        wakeup.notify_worker(box)


class TestTheFlagInRedis:
    def test_left_behind_by_a_crash_expires(self, broker: OutboxRedisBroker) -> None:
        flag = flag_for(broker, "outbox")
        assert flag.try_set()
        assert not flag.try_set()
        assert wait_until(flag.try_set)

    def test_is_one_for_all_processes_and_one_for_each_queue(self, broker: OutboxRedisBroker) -> None:
        flag = flag_for(broker, "outbox")
        assert isinstance(flag, RedisFlag)
        elsewhere = RedisFlag(broker.client, f"{broker.namespace}:outbox")
        assert flag.try_set()
        assert not elsewhere.try_set()
        assert flag_for(broker, "another").try_set()
        elsewhere.clear()
        assert flag.try_set()

    def test_lets_one_message_through_for_many_commits(self, broker: OutboxRedisBroker) -> None:
        for _ in range(5):
            wake(broker)
        assert waiting(broker) == 1
        clear_flag_then(flag_for(broker, "outbox"), lambda: None)
        wake(broker)
        assert waiting(broker) == 2

    def test_costs_one_round_trip_and_the_message_another(self, broker: OutboxRedisBroker) -> None:
        wake(broker)  # from the first time on the server has the scripts
        clear_flag_then(flag_for(broker, "outbox"), lambda: None)
        with commands(broker) as seen:
            wake(broker)
        assert seen == ["EVALSHA", "EVALSHA"]
        with commands(broker) as seen:
            wake(broker)
        assert seen == ["EVALSHA"]

    def test_survives_a_server_that_has_forgotten_its_scripts(self, broker: OutboxRedisBroker) -> None:
        wake(broker)
        clear_flag_then(flag_for(broker, "outbox"), lambda: None)
        broker.client.script_flush()
        wake(broker)
        assert waiting(broker) == 2

    def test_stays_down_while_plenty_are_waiting(self, broker: OutboxRedisBroker) -> None:
        for _ in range(ENOUGH_WAITING):
            wakeup.send(broker, "outbox", DELIVER)
        wake(broker)
        assert waiting(broker) == ENOUGH_WAITING
        broker.client.lpop(f"{broker.namespace}:outbox")
        wake(broker)
        assert waiting(broker) == ENOUGH_WAITING

    def test_goes_up_whatever_waits_in_the_queue_of_other_actors_messages(self, broker: OutboxRedisBroker) -> None:
        fill_with_others(broker)
        wake(broker)
        assert waiting(broker) == ENOUGH_WAITING + 1


class TestWithoutAFlag:
    """A broker that connects processes, but can't store a flag."""

    def test_one_wake_up_after_the_other_is_sent_though_no_worker_of_this_process_answers(self) -> None:
        broker = PlainBroker()
        for number in range(1, 4):
            wake(broker)
            assert len(broker.sent) == number

    def test_wake_ups_of_a_process_keep_a_distance(self) -> None:
        slept: list[float] = []
        flag = MinimumInterval(clock=lambda: 1000.0, sleep=slept.append)
        assert [flag.try_set(), flag.try_set()] == [True, True]
        assert slept == [0, pytest.approx(INTERVAL_SECONDS)]

    def test_few_are_sent_while_enough_are_waiting(self) -> None:
        now = 1000.0
        flag = MinimumInterval(lambda: ENOUGH_WAITING, clock=lambda: now, sleep=lambda _: None)
        assert [flag.try_set(), flag.try_set(), flag.may_send()] == [True, False, False]
        now += SLOW_INTERVAL_SECONDS
        assert [flag.may_send(), flag.try_set()] == [True, False]


class TestMessages:
    def test_of_other_actors_in_the_same_queue_keep_no_sweep_back(self, broker: OutboxRedisBroker) -> None:
        fill_with_others(broker)
        wakeup.send(broker, "outbox", DELIVER)
        assert waiting(broker) == ENOUGH_WAITING + 1

    def test_of_other_actors_in_the_same_queue_of_the_process_neither(self) -> None:
        broker = InProcessBroker()
        broker.declare_queue("outbox")
        for _ in range(ENOUGH_WAITING):
            broker.enqueue(other_message())
        wake(broker)
        wakeup.send(broker, "outbox", DELIVER)
        assert broker.queues["outbox"].qsize() == ENOUGH_WAITING + 2

    def test_are_bounded_in_a_queue_of_other_actors_messages_too(self, broker: OutboxRedisBroker) -> None:
        fill_with_others(broker)
        for _ in range(2 * ENOUGH_WAITING):
            wakeup.send(broker, "outbox", DELIVER)
            wake(broker)
        assert waiting(broker) == 2 * ENOUGH_WAITING

    def test_that_were_lost_with_their_queue_keep_no_other_back(self, broker: OutboxRedisBroker) -> None:
        for _ in range(ENOUGH_WAITING + 1):
            wakeup.send(broker, "outbox", DELIVER)
        broker.client.delete(f"{broker.namespace}:outbox")
        wakeup.send(broker, "outbox", DELIVER)
        assert waiting(broker) == 1

    def test_pile_up_to_a_bound_when_nobody_is_there(self, broker: OutboxRedisBroker) -> None:
        for _ in range(ENOUGH_WAITING + 20):
            wakeup.send(broker, "outbox", DELIVER)
        assert waiting(broker) == ENOUGH_WAITING

    def test_doubled_and_stale_are_harmless(self, stage: Stage) -> None:
        for _ in range(30):
            stage.wake()
        ids = stage.emit(30)
        for _ in range(30):
            stage.wake()
        worker = stage.worker()
        stage.wait_until_all("delivered")
        stage.wait_for(lambda: waiting(stage.broker) == 0, "all wake-ups are answered")
        assert sorted(stage.began()) == sorted(stage.ended()) == sorted(ids)
        assert worker.running

    def test_lost_are_made_up_for_by_a_sweep_whatever_the_flag_says(self, make_stage: MakeStage) -> None:
        stage = make_stage(sweep_seconds=3600)  # the worker does not look by itself
        (first,) = stage.emit()
        stage.worker()
        stage.wait_until_all("delivered")  # the worker has had its first look, for which it took the flag down
        broker = stage.broker
        broker.client.set(f"{broker.namespace}:outbox.flag", 1)  # whoever put it up is dead, and it stays
        (event,) = stage.emit()  # its wake-up was lost
        assert stage.statuses() == {"delivered": 1, "pending": 1}
        stage.scheduler()
        stage.wait_until_all("delivered")
        assert stage.ended() == [first, event]


class PlainBroker(dramatiq.Broker):
    """A broker that sends messages to another process."""

    def __init__(self) -> None:
        super().__init__(middleware=[])
        self.sent: list[Any] = []

    def enqueue(self, message: dramatiq.Message[Any], *, delay: int | None = None) -> dramatiq.Message[Any]:
        self.sent.append(message)
        return message


def other_message() -> dramatiq.Message[Any]:
    return dramatiq.Message(queue_name="outbox", actor_name="work", args=(), kwargs={}, options={})


def fill_with_others(broker: OutboxRedisBroker) -> None:
    for _ in range(ENOUGH_WAITING):
        broker.enqueue(other_message())


def wake(broker: Any) -> None:
    wakeup.send_wakeup(broker, "outbox")


@contextmanager
def commands(broker: OutboxRedisBroker) -> Iterator[list[str]]:
    """Yield a list that contains, after the block, the names of the Redis commands that the block sent.

    Commands that Lua scripts run are left out.
    """
    seen: list[str] = []
    end = f"end-{uuid4().hex}"
    with redis.Redis.from_url(broker._url) as other, other.monitor() as monitor:
        yield seen
        other.echo(end)
        entries = itertools.takewhile(lambda entry: end not in entry["command"], monitor.listen())
        asked = (entry["command"] for entry in entries if entry["client_type"] != "lua")
        seen += [command.split()[0] for command in asked if broker.namespace in command]


def waiting(broker: Any) -> int:
    return int(broker.client.llen(f"{broker.namespace}:outbox"))
