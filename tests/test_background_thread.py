"""A background thread: started when there is work, at most one, gone after an idle while, new in a forked child."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from outbox.background_thread import BackgroundThread
from outbox.core import Outbox
from outbox.delivery.lease import LeaseKeeper
from outbox.notify.notifier import Notifier
from outbox.notify.timer import Timer
from outbox.telemetry.process_reports import WORKER, ProcessReporter
from tests.support.program import run_python
from tests.support.servers import PATIENCE_SECONDS
from tests.support.table import becomes_true


class Owner:
    """Takes numbers, and has its thread pass them on."""

    def __init__(self, linger_seconds: float = 0.0) -> None:
        self._linger_seconds = linger_seconds
        self._waiting: list[int] = []
        self.done: list[tuple[int, threading.Thread]] = []
        self.thread = BackgroundThread("outbox-test", self._run)

    def add(self, number: int) -> None:
        with self.thread.changed:
            self._waiting.append(number)
            self.thread.changed.notify()
            self.thread.start()

    def _run(self, _: threading.Event) -> None:
        while self.thread.wait_for_work(lambda: bool(self._waiting), self._linger_seconds):
            self.done.append((self._waiting.pop(0), threading.current_thread()))


def test_making_one_starts_nothing() -> None:
    before = threading.active_count()
    assert not Owner().thread.is_running
    assert threading.active_count() == before


def test_work_starts_one_daemon_thread_which_ends_when_there_is_no_more() -> None:
    owner = Owner()
    owner.add(1)
    becomes_true(lambda: not owner.thread.is_running)
    ((number, thread),) = owner.done
    assert (number, thread.name, thread.daemon) == (1, "outbox-test", True)
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_while_it_lingers_the_same_thread_takes_the_next_work() -> None:
    owner = Owner(linger_seconds=PATIENCE_SECONDS)
    for number in range(3):
        owner.add(number)
        becomes_true(lambda number=number: len(owner.done) == number + 1)
    assert len({thread for _, thread in owner.done}) == 1


def test_no_work_is_lost_while_threads_end_and_begin() -> None:
    owner = Owner()
    for number in range(2_000):
        owner.add(number)
    becomes_true(lambda: len(owner.done) == 2_000)
    assert [number for number, _ in owner.done] == list(range(2_000))


def test_one_that_is_told_to_stop_may_finish_while_the_next_one_runs() -> None:
    heard: list[tuple[str, bool]] = []
    go_on = threading.Event()

    def run(stopped: threading.Event, word: str) -> None:
        assert stopped.wait(PATIENCE_SECONDS)
        go_on.wait(PATIENCE_SECONDS)
        heard.append((word, stopped.is_set()))

    thread = BackgroundThread("outbox-test", run)
    thread.start("first")
    first = thread.tell_to_stop()
    assert not thread.is_running
    thread.start("second")
    go_on.set()
    assert first is not None
    first.join(PATIENCE_SECONDS)
    assert (heard, thread.is_running) == ([("first", True)], True)
    second = thread.tell_to_stop()
    assert second is not None
    second.join(PATIENCE_SECONDS)
    assert heard == [("first", True), ("second", True)]
    assert thread.tell_to_stop() is None


def test_one_that_can_not_be_started_raises_and_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    owner = Owner()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="can't start"):
            owner.add(1)
    assert not owner.thread.is_running
    owner.add(2)
    becomes_true(lambda: [number for number, _ in owner.done] == [1, 2])


FORKING = """
import os, threading, warnings
from outbox.background_thread import BackgroundThread

warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # from Python 3.12 on

reset, ran = [], threading.Event()

def run(stopped):
    ran.set()
    stopped.wait()

thread = BackgroundThread("outbox-test", run, after_fork=lambda: reset.append(1))
thread.start()
ran.wait()
with thread.changed:  # a lock that the child would inherit as held
    child = os.fork()
    if child == 0:
        assert (reset, thread.is_running) == ([1], False)
        ran.clear()
        thread.start()
        ran.wait()
        print("child", flush=True)
        os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert (reset, thread.is_running) == ([], True)
thread.tell_to_stop().join(60)
print("parent")
"""


def test_a_forked_child_begins_without_a_thread_and_with_a_lock_of_its_own() -> None:
    assert run_python(FORKING).split() == ["child", "parent"]


AT_WORK = """
import os, threading, warnings
from outbox import background_thread
from outbox.background_thread import BackgroundThread

warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # from Python 3.12 on

lock, at_work, go_on = threading.Lock(), threading.Event(), threading.Event()

def run(stopped):
    with thread.fork_lock, lock:  # as a lock inside sys.stderr would be, when the thread logs
        at_work.set()
        go_on.wait()

thread = BackgroundThread("outbox-test", run)
thread.start()
at_work.wait()
"""

FORKING_DURING_WORK = """
background_thread.FORK_SECONDS = 60
# Functions to call before a fork run in the reverse order: this one runs first, then the fork waits for the thread.
os.register_at_fork(before=go_on.set)
for _ in range(2):  # the second time the locks are free again
    child = os.fork()
    if child == 0:
        print("held" if lock.locked() else "free", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""

FORKING_DURING_ENDLESS_WORK = """
background_thread.FORK_SECONDS = 0.01
child = os.fork()
if child == 0:
    with thread.fork_lock:
        print("child", flush=True)
    os._exit(0)
os.waitpid(child, 0)
print("parent")
"""

FORKING_BY_TWO_THREADS_AT_ONCE = """
go_on.set()
background_thread.FORK_SECONDS = 60
meeting = threading.Barrier(2)
os.register_at_fork(before=meeting.wait)

def fork():
    for _ in range(20):
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    done.append("forked")

done = []
threads = [threading.Thread(target=fork) for _ in range(2)]
for each in threads:
    each.start()
for each in threads:
    each.join()
assert thread.fork_lock.acquire(blocking=False)
print(*done)
"""


LOGGING = """
from outbox import background_thread  # before logging
import logging, os, threading, warnings

warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # from Python 3.12 on
background_thread.FORK_SECONDS = 3600
at_work, go_on = threading.Event(), threading.Event()
os.register_at_fork(before=go_on.set)

def run(stopped):
    with thread.fork_lock:
        at_work.set()
        go_on.wait()
        logging.getLogger("test").warning("logged")  # the first call needs the lock of the module logging

thread = background_thread.BackgroundThread("outbox-test", run)
thread.start()
at_work.wait()
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_fork_and_a_thread_that_logs_do_not_wait_for_each_other() -> None:
    assert run_python(LOGGING).split() == ["logged"]


def test_a_fork_waits_until_the_thread_has_finished_its_work() -> None:
    assert run_python(AT_WORK + FORKING_DURING_WORK).split() == ["free", "free"]


def test_a_fork_waits_for_endless_work_only_for_a_while() -> None:
    assert run_python(AT_WORK + FORKING_DURING_ENDLESS_WORK).split() == ["child", "parent"]


def test_two_threads_can_fork_at_once() -> None:
    assert run_python(AT_WORK + FORKING_BY_TWO_THREADS_AT_ONCE).split() == ["forked", "forked"]


def test_work_that_forks_does_not_wait_for_itself() -> None:
    code = """
import os, warnings
from outbox import background_thread

warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # from Python 3.12 on
background_thread.FORK_SECONDS = 3600

def run(stopped):
    with thread.fork_lock:
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)

thread = background_thread.BackgroundThread("outbox-test", run)
thread.start()
thread.tell_to_stop().join()
print("done")
"""
    assert run_python(code).split() == ["done"]


def is_acquired(lock: threading.RLock) -> bool:
    """Return whether another thread than a new one has acquired the lock."""

    def try_it() -> bool:
        if lock.acquire(blocking=False):
            lock.release()
            return False
        return True

    with ThreadPoolExecutor(1) as another:
        return another.submit(try_it).result()


class Checked:
    """Work for an owner's thread: it notes whether a fork would wait for it."""

    def __init__(self) -> None:
        self.seen: list[bool] = []
        self.thread: BackgroundThread | None = None

    def __call__(self, *_: object) -> dict[str, Any]:
        assert self.thread is not None
        self.seen.append(is_acquired(self.thread.fork_lock))
        return {}


class OneBatch:
    """As much of a batch as the lease keeper needs to begin."""

    started_at = 0.0


def notify(work: Checked, box: Outbox) -> None:
    notifier = Notifier(work)  # type: ignore[arg-type]
    work.thread = notifier._thread
    notifier.notify()


def set_a_timer(work: Checked, box: Outbox) -> None:
    timer = Timer(work)  # type: ignore[arg-type]
    work.thread = timer._thread
    timer.set(0)


def report(work: Checked, box: Outbox) -> None:
    reporter = ProcessReporter(box.dialect, box.counters, 60, work)
    work.thread = reporter._thread
    reporter.start(WORKER)
    reporter.stop()


def renew(work: Checked, box: Outbox) -> None:
    keeper: Any = LeaseKeeper(box.dialect, box.settings)
    work.thread, keeper._attend = keeper._thread, work
    batch = OneBatch()
    keeper.renew_while_in_flight(batch)
    becomes_true(lambda: work.seen)
    keeper.stop_renewing(batch)


@pytest.mark.parametrize("begin", [notify, set_a_timer, report, renew])
def test_a_fork_waits_for_the_work_of_each_owner(box: Outbox, begin: Callable[[Checked, Outbox], None]) -> None:
    work = Checked()
    begin(work, box)
    becomes_true(lambda: work.seen)
    assert all(work.seen)
