"""Landing: what is left to do is done once, by whoever ends last."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from outbox.delivery.completion import Landing


def test_it_is_done_when_the_last_group_has_ended_and_by_it() -> None:
    done: list[threading.Thread] = []
    landing = Landing(2)
    landing.then(lambda: done.append(threading.current_thread()))
    landing.ended()
    assert done == []
    last = threading.Thread(target=landing.ended)
    last.start()
    last.join()
    assert done == [last]


@pytest.mark.parametrize("groups", [0, 1, 3])
def test_it_is_done_at_once_if_all_have_ended_before(groups: int) -> None:
    done: list[int] = []
    landing = Landing(groups)
    for _ in range(groups):
        landing.ended()
    landing.then(lambda: done.append(1))
    assert done == [1]


def test_whoever_gives_up_on_the_others_does_it_and_they_do_not_do_it_again() -> None:
    done: list[int] = []
    landing = Landing(3)
    landing.then(lambda: done.append(1))
    landing.ended()
    landing.abandon()
    assert done == [1]
    landing.abandon()
    landing.ended()
    landing.ended()
    assert done == [1]


def test_what_was_given_up_before_anybody_said_what_to_do_is_done_then() -> None:
    done: list[int] = []
    landing = Landing(3)
    landing.abandon()
    landing.then(lambda: done.append(1))
    assert done == [1]


def test_an_error_in_it_is_the_callers_and_it_is_not_tried_again() -> None:
    landing = Landing(1)
    landing.then(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        landing.ended()
    landing.abandon()


def test_whatever_ends_at_the_same_moment_it_is_done_once() -> None:
    for _ in range(200):
        race = Race()
        with ThreadPoolExecutor(5) as executor:
            list(executor.map(race.run, race.steps))
        assert race.done == [1]


class Race:
    """All that can happen to a landing, at once."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self._barrier = threading.Barrier(5, timeout=20)
        landing = Landing(3)
        ends: list[Callable[[], object]] = [landing.ended, landing.ended, landing.ended, landing.abandon]
        self.steps = [*ends, lambda: landing.then(lambda: self.done.append(1))]

    def run(self, step: Callable[[], object]) -> None:
        self._barrier.wait()
        step()
