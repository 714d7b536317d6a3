"""What a webhook's limits and breaker mean for several workers at once."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.processes import MakeStage, Stage
from tests.support.receiver import Exchange, Receiver, Reply, answers

PROCESSES = 3


@contextmanager
def fleet(make_stage: MakeStage, reply: Reply, **options: Any) -> Iterator[tuple[Stage, Receiver]]:
    """Workers in several processes, and one webhook for all."""
    with Receiver(reply) as receiver:
        stage = make_stage()
        stage.environment["OUTBOX_TEST_HOOKS"] = json.dumps([{"name": "hook", "url": receiver.url, **options}])
        for _ in range(PROCESSES):
            stage.worker("tests.apps.hooks", threads=4)
        stage.scheduler()
        yield stage, receiver


def test_no_more_calls_are_under_way_than_all_of_them_together_may_make(make_stage: MakeStage) -> None:
    def take_a_moment(exchange: Exchange) -> None:
        exchange.connection.pause(0.02)
        answers()(exchange)

    with fleet(make_stage, take_a_moment, concurrency=2) as (stage, receiver):
        for _ in range(10 * PROCESSES):
            stage.emit(3)
            stage.wake()
        stage.wait_until_all("delivered")
        assert len(receiver.requests) == 30 * PROCESSES
        assert receiver.most_at_once == 2


def test_no_more_events_go_in_a_time_than_all_of_them_together_may_send(make_stage: MakeStage) -> None:
    arrived: list[float] = []

    def note(exchange: Exchange) -> None:
        arrived.append(time.monotonic())
        answers()(exchange)

    with fleet(make_stage, note, per_second=20) as (stage, _):
        begun = time.monotonic()
        for _ in range(PROCESSES):
            stage.emit(20)
            stage.wake()
        stage.wait_until_all("delivered")
    # The last of them is not there before its turn; a tenth of a second's worth may go at once.
    assert len(arrived) == 20 * PROCESSES
    assert max(arrived) - begun >= (len(arrived) - 3) / 20
