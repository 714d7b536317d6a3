"""The notifier: whatever happens to a notification, no commit waits for it and no caller gets its error."""

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
from tests.support.notifications import replace_wake
from tests.support.program import run_python
from tests.support.servers import PATIENCE_SECONDS, Redis, RedisServer, wait_until

on_sqlite = pytest.mark.parametrize("url", ["sqlite"], indirect=True)

FAILED, WORKS = "Could not notify a worker", "Workers can be notified again."


def emit_in_transactions(box: Outbox, *numbers: int) -> None:
    for number in numbers:
        with box.database.atomic():
            outbox.emit("Note", number, "note.written")


def stored() -> int:
    return OutboxEvent.select().count()


class Waker:
    """A wake function that blocks until `go_on` is set, and records the threads that called it."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def __call__(self) -> None:
        self.threads.append(threading.current_thread())
        self.begun.set()
        assert self.go_on.wait(PATIENCE_SECONDS)


# In the background


def test_a_background_thread_notifies_and_the_commit_does_not_wait(box: Outbox) -> None:
    waker = Waker()
    replace_wake(box, waker)
    emit_in_transactions(box, 1)
    assert waker.begun.wait(PATIENCE_SECONDS)
    emit_in_transactions(box, *range(2, 20))
    # All are committed while the first notification is still being sent.
    assert (stored(), len(waker.threads)) == (19, 1)
    waker.go_on.set()
    box.notifier.flush()
    assert threading.current_thread() not in waker.threads
    assert len(waker.threads) == 2  # all commits during the first notification are one more


def test_while_commits_keep_coming_the_thread_pauses_between_notifications_and_flush_ends_the_pause() -> None:
    waker = Waker()
    waker.go_on.set()
    busy = Notifier(waker, shortest_pause_seconds=PATIENCE_SECONDS)
    busy.notify()
    assert waker.begun.wait(PATIENCE_SECONDS)  # an idle thread notifies at once
    for _ in range(18):
        busy.notify()
    assert not wait_until(lambda: len(waker.threads) > 1, 0.2)
    busy.flush(PATIENCE_SECONDS / 2)
    assert len(waker.threads) == 2


def test_pauses_grow_while_commits_keep_coming_and_are_short_again_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy = Notifier(lambda: None)
    pauses = Pauses(busy, notifications=5)
    monkeypatch.setattr(busy, "_flushing", pauses)
    busy.notify()
    assert wait_until(lambda: len(pauses.seconds) == 6)
    busy.flush()
    busy.notify()
    assert wait_until(lambda: len(pauses.seconds) == 7)
    least, most = notifier.SHORTEST_PAUSE_SECONDS, notifier.LONGEST_PAUSE_SECONDS
    assert pauses.seconds == [least, 2 * least, 4 * least, most, most, most, least]


class Pauses(threading.Event):
    """Records how long the thread would pause; the first pauses each see another notification requested."""

    def __init__(self, notifier: Notifier, notifications: int) -> None:
        super().__init__()
        self._notifier = notifier
        self._left = notifications
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.seconds.append(timeout)
        if self._left:
            self._left -= 1
            self._notifier.notify()
        return True


def test_flushing_an_idle_notifier_returns_at_once() -> None:
    waker = Waker()
    Notifier(waker).flush(seconds=float("inf"))
    assert waker.threads == []


def test_flushing_gives_up_on_a_notification_that_hangs() -> None:
    waker = Waker()
    hung = Notifier(waker)
    hung.notify()
    hung.flush(seconds=0.01)
    assert not hung._idle.is_set()  # it is still being sent
    waker.go_on.set()
    hung.flush(PATIENCE_SECONDS)
    assert hung._idle.is_set()


def test_the_thread_ends_after_an_idle_while_and_the_next_notification_starts_another() -> None:
    waker = Waker()
    waker.go_on.set()
    busy = Notifier(waker, linger_seconds=0.01)
    for _ in range(2):
        busy.notify()
        busy.flush()
        assert wait_until(lambda: not waker.threads[-1].is_alive())
    assert len(set(waker.threads)) == 2


@pytest.mark.parametrize("silent", [Notifier(None), Notifier(None, inline=True)])
def test_a_notifier_without_a_wake_function_does_nothing(silent: Notifier) -> None:
    silent.notify()
    silent.notify_in(0.0)
    silent.flush(seconds=float("inf"))
    assert not silent._thread.is_running
    assert not silent._timer.is_running


# Redis


class Notifying:
    """An outbox that notifies workers through a Redis server, and what it logged."""

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

    def logged(self, what: str) -> int:
        return sum(what in message for message in self._log.messages)

    def queued(self) -> int:
        client: Any = self.broker.client
        return int(client.llen(f"{self.broker.namespace}:outbox"))


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    with RedisServer() as server:  # by default it evicts nothing: when it is full, it refuses
        yield server


@pytest.fixture
def notifying(box: Outbox, own_redis: RedisServer, caplog: pytest.LogCaptureFixture) -> Iterator[Notifying]:
    notifying = Notifying(box, own_redis, caplog)
    yield notifying
    box.notifier.flush(PATIENCE_SECONDS)
    notifying.broker.client.close()


def test_a_redis_that_refuses_connections_is_logged_once_and_fails_no_commit(
    notifying: Notifying, own_redis: RedisServer
) -> None:
    own_redis.stop()
    for number in range(5):
        notifying.emit_and_flush(number)
    assert (stored(), notifying.logged(FAILED), notifying.logged(WORKS)) == (5, 1, 0)
    assert notifying.logged("refused. Workers also look") == 1
    own_redis.start()
    for number in range(5, 8):
        notifying.emit_and_flush(number)
    assert (stored(), notifying.logged(FAILED), notifying.logged(WORKS)) == (8, 1, 1)
    assert notifying.queued() == 1


def test_a_redis_that_hangs_blocks_no_commit(notifying: Notifying, own_redis: RedisServer) -> None:
    notifying.emit_and_flush(0)
    own_redis.pause()
    emit_in_transactions(notifying.box, *range(1, 20))
    assert (stored(), notifying.box.notifier._idle.is_set()) == (20, False)
    own_redis.resume()
    notifying.box.notifier.flush(PATIENCE_SECONDS)
    assert notifying.box.notifier._idle.is_set()


def test_a_full_redis_is_logged_once_and_fails_no_commit(notifying: Notifying) -> None:
    client: Any = notifying.broker.client
    client.config_set("maxmemory", "1")
    for number in range(5):
        notifying.emit_and_flush(number)
    assert (stored(), notifying.logged(FAILED), notifying.logged("maxmemory")) == (5, 1, 1)
    client.config_set("maxmemory", "0")
    notifying.emit_and_flush(5)
    assert (stored(), notifying.logged(WORKS), notifying.queued()) == (6, 1, 1)


# Forks and the end of a process

FORKING = """
import os, sys, threading, warnings
from outbox.notify.notifier import Notifier

warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # from Python 3.12 on
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
# At the fork the parent's notification is being sent.
child = os.fork()
notifier.notify()
if child == 0:
    notifier.flush(60)
    os._exit(0)
os.waitpid(child, 0)
go_on.set()
notifier.flush(60)
"""


def test_the_notifier_survives_a_fork() -> None:
    assert run_python(FORKING).split() == ["child", "parent", "parent"]


EMITTING = """
import outbox
with outbox.current().database.atomic():
    outbox.emit("Note", 1, "note.written")
"""


def test_a_process_that_emits_and_ends_at_once_has_notified_a_worker(
    database: Any, url: str, redis_server: Redis
) -> None:
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
def test_a_process_that_emits_without_redis_ends_normally_and_logs_that_once(database: Any, url: str) -> None:
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


def test_if_no_thread_can_be_started_that_is_logged_once_and_nothing_is_raised() -> None:
    assert run_python(WITHOUT_THREADS).count(FAILED) == 1
