"""The bell: whatever becomes of a wake-up, no commit waits for it and no caller hears of it."""

import logging
import threading
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
import redis

import outbox
from outbox import OutboxEvent
from outbox.core import Outbox
from outbox.dramatiq.actor_names import DELIVER
from outbox.dramatiq.redis_broker import OutboxRedisBroker
from outbox.dramatiq.wakeup import send_wakeup
from outbox.notify import notifier
from outbox.notify.notifier import Notifier
from outbox.settings import Settings
from tests.program import run_python
from tests.servers import PATIENCE_SECONDS, Redis, RedisServer, wait_until
from tests.support.notifications import replace_wake

on_sqlite = pytest.mark.parametrize("url", ["sqlite"], indirect=True)

FAILED, WORKS = "Could not notify a worker", "Workers can be notified again."


def emit_in_transactions(box: Outbox, *numbers: int) -> None:
    for number in numbers:
        with box.database.atomic():
            outbox.emit("Note", number, "note.written")


def stored() -> int:
    return OutboxEvent.select().count()


class Waker:
    """A wake-up that can be held up, and that remembers by whom it was called."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def __call__(self) -> None:
        self.threads.append(threading.current_thread())
        self.begun.set()
        assert self.go_on.wait(PATIENCE_SECONDS)


# In the background


def test_the_bell_is_rung_from_a_thread_of_its_own_and_the_commit_does_not_wait(box: Outbox) -> None:
    waker = Waker()
    replace_wake(box, waker)
    emit_in_transactions(box, 1)
    assert waker.begun.wait(PATIENCE_SECONDS)
    emit_in_transactions(box, *range(2, 20))
    # All are committed, and the first wake-up is still under way.
    assert (stored(), len(waker.threads)) == (19, 1)
    waker.go_on.set()
    box.notifier.flush()
    assert threading.current_thread() not in waker.threads
    assert len(waker.threads) == 2  # what was rung meanwhile is one more wake-up, and not forgotten


def test_while_commits_keep_coming_the_bell_rests_between_wake_ups_and_flushing_ends_the_rest(
    box: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "SHORTEST_PAUSE_SECONDS", PATIENCE_SECONDS)
    waker = Waker()
    waker.go_on.set()
    replace_wake(box, waker)
    emit_in_transactions(box, 1)
    assert waker.begun.wait(PATIENCE_SECONDS)  # an idle bell rings at once
    emit_in_transactions(box, *range(2, 20))
    assert len(waker.threads) == 1
    box.notifier.flush(PATIENCE_SECONDS / 2)
    assert len(waker.threads) == 2


def test_a_rest_grows_while_commits_keep_coming_and_is_short_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rung = Notifier(lambda: None)
    rests = Rests(rung, keep_ringing=5)
    monkeypatch.setattr(rung, "_flushing", rests)
    rung.notify()
    assert wait_until(lambda: len(rests.seconds) == 6)
    rung.flush()
    rung.notify()
    assert wait_until(lambda: len(rests.seconds) == 7)
    least, most = notifier.SHORTEST_PAUSE_SECONDS, notifier.LONGEST_PAUSE_SECONDS
    assert rests.seconds == [least, 2 * least, 4 * least, most, most, most, least]


class Rests(threading.Event):
    """How long the bell would rest; meanwhile it is rung again, the first times."""

    def __init__(self, rung: Notifier, keep_ringing: int) -> None:
        super().__init__()
        self._notifier = rung
        self._left = keep_ringing
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.seconds.append(timeout)
        if self._left:
            self._left -= 1
            self._notifier.notify()
        return True


def test_flushing_an_idle_bell_returns_at_once() -> None:
    Notifier(lambda: None).flush(seconds=float("inf"))


def test_flushing_gives_up_on_a_wake_up_that_hangs() -> None:
    waker = Waker()
    hung = Notifier(waker)
    hung.notify()
    hung.flush(seconds=0.01)
    waker.go_on.set()
    hung.flush()


def test_the_thread_ends_when_nobody_rings_and_another_is_started_when_somebody_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notifier, "LINGER_SECONDS", 0.01)
    waker = Waker()
    waker.go_on.set()
    rung = Notifier(waker)
    for _ in range(2):
        rung.notify()
        rung.flush()
        assert wait_until(lambda: not waker.threads[-1].is_alive())
    assert len(set(waker.threads)) == 2


@pytest.mark.parametrize("silent", [Notifier(None), Notifier(None, inline=True)])
def test_without_anybody_to_wake_ringing_does_nothing(silent: Notifier) -> None:
    silent.notify()
    silent.flush(seconds=float("inf"))


# Redis


class Ringing:
    """An outbox whose bell sends wake-ups through a Redis, and what the log said."""

    def __init__(self, box: Outbox, server: Redis, log: pytest.LogCaptureFixture) -> None:
        log.set_level(logging.INFO, logger="outbox")
        self.box = box
        self._log = log
        self.broker = OutboxRedisBroker(Settings(redis_url=server.url, namespace=f"test-{uuid4().hex}"))
        replace_wake(box, self._wake)

    def _wake(self) -> None:
        send_wakeup(self.broker, "outbox")

    def emit_and_flush(self, number: int) -> None:
        emit_in_transactions(self.box, number)
        self.box.notifier.flush(PATIENCE_SECONDS)

    def said(self, what: str) -> int:
        return sum(what in message for message in self._log.messages)

    def queued(self) -> int:
        client: Any = self.broker.client
        return int(client.llen(f"{self.broker.namespace}:outbox"))


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    with RedisServer() as server:  # by default it evicts nothing: when it is full, it refuses
        yield server


@pytest.fixture
def ringing(box: Outbox, own_redis: RedisServer, caplog: pytest.LogCaptureFixture) -> Iterator[Ringing]:
    ringing = Ringing(box, own_redis, caplog)
    yield ringing
    box.notifier.flush(PATIENCE_SECONDS)
    ringing.broker.client.close()


def test_a_redis_that_refuses_is_said_once_and_harms_no_commit(ringing: Ringing, own_redis: RedisServer) -> None:
    own_redis.stop()
    for number in range(5):
        ringing.emit_and_flush(number)
    assert (stored(), ringing.said(FAILED), ringing.said(WORKS)) == (5, 1, 0)
    own_redis.start()
    for number in range(5, 8):
        ringing.emit_and_flush(number)
    assert (stored(), ringing.said(FAILED), ringing.said(WORKS)) == (8, 1, 1)
    assert ringing.queued() == 1


def test_a_redis_that_hangs_holds_up_no_commit(ringing: Ringing, own_redis: RedisServer) -> None:
    ringing.emit_and_flush(0)
    own_redis.pause()
    emit_in_transactions(ringing.box, *range(1, 20))
    assert (stored(), ringing.box.notifier._idle.is_set()) == (20, False)
    own_redis.resume()
    ringing.box.notifier.flush(PATIENCE_SECONDS)
    assert ringing.box.notifier._idle.is_set()


def test_a_full_redis_is_said_once_and_harms_no_commit(ringing: Ringing) -> None:
    client: Any = ringing.broker.client
    client.config_set("maxmemory", "1")
    for number in range(5):
        ringing.emit_and_flush(number)
    assert (stored(), ringing.said(FAILED), ringing.said("maxmemory")) == (5, 1, 1)
    client.config_set("maxmemory", "0")
    ringing.emit_and_flush(5)
    assert (stored(), ringing.said(WORKS), ringing.queued()) == (6, 1, 1)


# Processes that begin and end

FORKING = """
import os, sys, threading
from outbox.notify.notifier import Notifier

parent = os.getpid()
begun, go_on = threading.Event(), threading.Event()

def wake():
    begun.set()
    if os.getpid() == parent:
        go_on.wait()
    print("parent" if os.getpid() == parent else "child", flush=True)

notifier = Notifier(wake)
notifier.notify()
begun.wait()
# The child finds the parent's ring half way.
child = os.fork()
notifier.notify()
if child == 0:
    notifier.flush(60)
    os._exit(0)
os.waitpid(child, 0)
go_on.set()
notifier.flush(60)
"""


def test_the_bell_survives_a_fork() -> None:
    assert run_python(FORKING).split() == ["child", "parent", "parent"]


EMITTING = """
import outbox
with outbox.current().database.atomic():
    outbox.emit("Note", 1, "note.written")
"""


def test_a_process_that_emits_and_ends_at_once_has_rung(database: Any, url: str, redis_server: Redis) -> None:
    namespace = f"test-{uuid4().hex}"
    said = run_python(EMITTING, database_url=url, redis_url=redis_server.url, namespace=namespace)
    assert said == ""
    with redis.Redis.from_url(redis_server.url) as client:
        assert client.llen(f"{namespace}:outbox") == 1
        (message,) = client.hvals(f"{namespace}:outbox.msgs")
        assert DELIVER.encode() in message


@on_sqlite
def test_a_process_that_emits_and_ends_does_not_wait_for_a_redis_that_hangs(
    database: Any, url: str, own_redis: RedisServer
) -> None:
    own_redis.pause()
    run_python(EMITTING, database_url=url, redis_url=own_redis.url)
    assert outbox.Outbox(Settings(dispatch="off"), database=database).process_pending_events()["processed"] == 1


@on_sqlite
def test_a_process_that_emits_without_redis_ends_well_and_says_so_once(database: Any, url: str) -> None:
    said = run_python(EMITTING, database_url=url, redis_url="redis://127.0.0.1:1/0")
    assert said.count(FAILED) == 1
    assert "Traceback" not in said


WITHOUT_THREADS = """
import resource, sys, threading
from outbox.notify.notifier import Notifier

woken = []
notifier = Notifier(lambda: woken.append(1))
threading.stack_size(1 << 40)
resource.setrlimit(resource.RLIMIT_AS, (1 << 34, resource.RLIM_INFINITY))
notifier.notify()
notifier.notify()
notifier.flush(60)
assert not woken
threading.stack_size(0)
notifier.notify()
notifier.flush(60)
assert woken
"""


def test_where_no_thread_can_be_started_ringing_says_so_once_and_raises_nothing() -> None:
    assert run_python(WITHOUT_THREADS).count(FAILED) == 1
