"""A background thread: started when there is work, at most one, gone after an idle while, new in a forked child."""

from __future__ import annotations

import threading

import pytest

from outbox.background_thread import BackgroundThread
from tests.support.program import run_python
from tests.support.table import PATIENCE_SECONDS, becomes_true


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
import os, threading
from outbox.background_thread import BackgroundThread

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
