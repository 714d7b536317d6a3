"""The timer: it calls its function when a time has come, not before, and has a thread only while a time is set."""

import threading
import time
from queue import Empty, SimpleQueue

import pytest

from outbox.notify.notifier import Notifier
from outbox.notify.timer import GRAIN_SECONDS, Timer
from tests.support.program import run_python
from tests.support.servers import PATIENCE_SECONDS
from tests.support.table import becomes_true


class Listener:
    """Has a timer call it, and records when, and in which thread."""

    def __init__(self) -> None:
        self.heard: SimpleQueue[float] = SimpleQueue()
        self.threads: list[threading.Thread] = []
        self.timer = Timer(self._call)

    def _call(self) -> None:
        self.threads.append(threading.current_thread())
        self.heard.put(time.monotonic())

    def next(self) -> float:
        return self.heard.get(timeout=PATIENCE_SECONDS)

    @property
    def is_idle(self) -> bool:
        return not self.timer.is_running


def test_it_calls_when_the_time_has_come_and_not_before() -> None:
    listener = Listener()
    for seconds in (0.0, 0.1, 0.2):
        set_at = time.monotonic()
        listener.timer.set(seconds)
        assert listener.next() >= set_at + seconds


def test_a_time_that_has_passed_is_now() -> None:
    listener = Listener()
    set_at = time.monotonic()
    listener.timer.set(-1_000.0)
    assert listener.next() >= set_at
    becomes_true(lambda: listener.is_idle)


def test_an_earlier_time_does_not_wait_for_a_later_one() -> None:
    listener = Listener()
    listener.timer.set(3_600.0)
    for _ in range(5):
        set_at = time.monotonic()
        listener.timer.set(0.05)
        assert listener.next() >= set_at + 0.05
    assert not listener.is_idle  # the later time is still to come


def test_nor_is_the_later_one_forgotten() -> None:
    listener = Listener()
    set_at = time.monotonic()
    listener.timer.set(0.3)
    listener.timer.set(0.1)
    first, second = listener.next(), listener.next()
    assert first >= set_at + 0.1
    assert second >= set_at + 0.3


def test_times_close_together_are_one() -> None:
    listener = Listener()
    began_at = time.monotonic()
    for _ in range(1_000):
        listener.timer.set(0.1)
    grains = (time.monotonic() - began_at) / GRAIN_SECONDS + 2
    becomes_true(lambda: listener.is_idle)
    assert 1 <= listener.heard.qsize() <= grains


def test_its_thread_ends_when_no_time_is_set_and_another_is_started_when_one_is() -> None:
    listener = Listener()
    assert listener.is_idle
    for _ in range(2):
        listener.timer.set(0.0)
        listener.next()
        becomes_true(lambda: not listener.threads[-1].is_alive())
        assert listener.is_idle
    assert len(set(listener.threads)) == 2
    with pytest.raises(Empty):
        listener.heard.get_nowait()


def test_one_thread_is_enough_for_many_times() -> None:
    listener = Listener()
    for seconds in (0.3, 0.2, 0.1):
        listener.timer.set(seconds)
    for _ in range(3):
        listener.next()
    assert len(set(listener.threads)) == 1
    assert listener.threads[0].daemon


def test_the_called_function_may_set_it_again() -> None:
    calls: list[int] = []

    def call() -> None:
        calls.append(1)
        if len(calls) < 3:
            timer.set(0.0)

    timer = Timer(call)
    timer.set(0.0)
    becomes_true(lambda: len(calls) == 3)


def test_if_no_thread_can_be_started_nothing_is_raised_and_the_next_time_calls_for_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listener = Listener()

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        listener.timer.set(0.0)
    assert listener.is_idle
    listener.timer.set(0.2)
    listener.next()
    listener.next()


# The notifier's timer


def test_the_notifier_notifies_after_so_many_seconds() -> None:
    notified: SimpleQueue[float] = SimpleQueue()
    notifier = Notifier(lambda: notified.put(time.monotonic()))
    set_at = time.monotonic()
    notifier.notify_in(0.2)
    assert notified.get(timeout=PATIENCE_SECONDS) >= set_at + 0.2


@pytest.mark.parametrize("silent", [Notifier(None), Notifier(lambda: None, inline=True)])
def test_a_notifier_without_a_worker_elsewhere_starts_no_timer(silent: Notifier) -> None:
    silent.notify_in(0.0)
    assert not silent._timer.is_running


FORKING = """
import os, warnings
from outbox.notify.notifier import Notifier

warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # from Python 3.12 on
notified = []
notifier = Notifier(lambda: notified.append(1))
notifier.notify_in(3600)
child = os.fork()
if child == 0:
    notifier.notify_in(0.01)
    while not notified:
        pass
    print("child", flush=True)
    os._exit(0)
os.waitpid(child, 0)
assert not notified
notifier.notify_in(0.01)
while not notified:
    pass
print("parent")
"""


def test_it_survives_a_fork() -> None:
    assert run_python(FORKING).split() == ["child", "parent"]
