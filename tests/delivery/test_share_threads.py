"""Completion calls back once, in the thread that ends last."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from outbox.delivery.batch import Completion
from tests.support.servers import PATIENCE_SECONDS


def test_the_callback_runs_when_the_last_share_has_ended_in_its_thread() -> None:
    done: list[threading.Thread] = []
    completion = Completion(2)
    completion.then(lambda: done.append(threading.current_thread()))
    completion.share_ended()
    assert done == []
    last = threading.Thread(target=completion.share_ended)
    last.start()
    last.join()
    assert done == [last]


@pytest.mark.parametrize("shares", [0, 1, 3])
def test_the_callback_runs_at_once_if_all_shares_have_ended_before(shares: int) -> None:
    done: list[int] = []
    completion = Completion(shares)
    for _ in range(shares):
        completion.share_ended()
    completion.then(lambda: done.append(1))
    assert done == [1]


def test_the_callback_runs_when_the_shares_are_abandoned_and_only_once() -> None:
    done: list[int] = []
    completion = Completion(3)
    completion.then(lambda: done.append(1))
    completion.share_ended()
    completion.abandon()
    assert done == [1]
    completion.abandon()
    completion.share_ended()
    completion.share_ended()
    assert done == [1]


def test_a_callback_that_is_set_after_the_shares_were_abandoned_runs_at_once() -> None:
    done: list[int] = []
    completion = Completion(3)
    completion.abandon()
    completion.then(lambda: done.append(1))
    assert done == [1]


def test_an_error_in_the_callback_is_raised_and_the_callback_does_not_run_again() -> None:
    completion = Completion(1)
    completion.then(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        completion.share_ended()
    completion.abandon()


def test_the_callback_runs_once_however_many_threads_end_at_the_same_time() -> None:
    for _ in range(200):
        race = Race()
        with ThreadPoolExecutor(5) as executor:
            list(executor.map(race.run, race.steps))
        assert race.done == [1]


class Race:
    """Everything that can happen to a completion, at the same time."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self._barrier = threading.Barrier(5, timeout=PATIENCE_SECONDS)
        completion = Completion(3)
        ends: list[Callable[[], object]] = [
            completion.share_ended,
            completion.share_ended,
            completion.share_ended,
            completion.abandon,
        ]
        self.steps = [*ends, lambda: completion.then(lambda: self.done.append(1))]

    def run(self, step: Callable[[], object]) -> None:
        self._barrier.wait()
        step()
