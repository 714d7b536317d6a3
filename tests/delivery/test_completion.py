"""Completion: what is left to do is done once, by whoever ends last."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from outbox.delivery.share_threads import Completion


def test_it_is_done_when_the_last_group_has_ended_and_by_it() -> None:
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
def test_it_is_done_at_once_if_all_have_ended_before(shares: int) -> None:
    done: list[int] = []
    completion = Completion(shares)
    for _ in range(shares):
        completion.share_ended()
    completion.then(lambda: done.append(1))
    assert done == [1]


def test_whoever_gives_up_on_the_others_does_it_and_they_do_not_do_it_again() -> None:
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


def test_what_was_given_up_before_anybody_said_what_to_do_is_done_then() -> None:
    done: list[int] = []
    completion = Completion(3)
    completion.abandon()
    completion.then(lambda: done.append(1))
    assert done == [1]


def test_an_error_in_it_is_the_callers_and_it_is_not_tried_again() -> None:
    completion = Completion(1)
    completion.then(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        completion.share_ended()
    completion.abandon()


def test_whatever_ends_at_the_same_moment_it_is_done_once() -> None:
    for _ in range(200):
        race = Race()
        with ThreadPoolExecutor(5) as executor:
            list(executor.map(race.run, race.steps))
        assert race.done == [1]


class Race:
    """All that can happen to a completion, at once."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self._barrier = threading.Barrier(5, timeout=20)
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
