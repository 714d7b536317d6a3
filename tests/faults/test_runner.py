"""The runner: a service that is handed events over HTTP, and is down for a while."""

import json
import threading
import time
from collections import defaultdict

import pytest

from outbox import webhooks
from tests.support.processes import MakeStage, Stage
from tests.support.receiver import LOOPBACK, Exchange, Gone, Receiver, answers
from tests.support.servers import free_port

SECRET = webhooks.new_secret()
BACKOFF = 0.4


class Runner:
    """What it was sent, by event: when, and the body; and it answers as the test says."""

    def __init__(self) -> None:
        self.sent: dict[str, list[tuple[float, bytes]]] = defaultdict(list)
        self.accepted: list[str] = []
        self.refuse_first = 0
        self.hang_up_first = 0
        self._lock = threading.Lock()

    def __call__(self, exchange: Exchange) -> None:
        id = webhooks.verify(exchange.request.headers, exchange.request.body, SECRET)
        with self._lock:
            self.sent[id].append((time.monotonic(), exchange.request.body))
            attempt = len(self.sent[id])
            if attempt > self.refuse_first:
                self.accepted.append(id)
        if attempt <= self.refuse_first:
            answers(503)(exchange)
        elif attempt <= self.hang_up_first:
            raise Gone
        else:
            answers(204, b"")(exchange)


@pytest.fixture
def port() -> int:
    """Where nobody listens yet."""
    return free_port()


def deployment(make_stage: MakeStage, port: int) -> Stage:
    """Workers whose only destination is the one that the environment names."""
    stage = make_stage(
        webhook_url=f"http://{LOOPBACK}:{port}/hook",
        webhook_secret=SECRET,
        backoff_base_seconds=BACKOFF,
        backoff_cap_seconds=60,
    )
    stage.worker("outbox", processes=2)
    stage.scheduler()
    return stage


def test_a_runner_that_was_down_finds_every_event_once_when_it_is_back(make_stage: MakeStage, port: int) -> None:
    stage, runner = deployment(make_stage, port), Runner()
    ids = stage.emit(15)
    stage.wait_for(lambda: all(progress is not None for (progress,) in stage.rows("progress")), "all are put off")
    stage.wait_for(
        lambda: any("circuit breaker is open" in str(error) for (error,) in stage.rows("error_message")),
        "the circuit breaker to open",
    )
    assert {status for (status,) in stage.rows("status")} <= {"pending", "sending"}
    with Receiver(runner, port=port):
        stage.wait_until_all("delivered")
    assert sorted(runner.accepted) == sorted(map(str, ids))
    assert {attempts for (attempts,) in stage.rows("attempts")} == {1}


def test_nothing_comes_before_its_backoff(make_stage: MakeStage, port: int) -> None:
    runner = Runner()
    runner.refuse_first = 2
    with Receiver(runner, port=port):
        stage = deployment(make_stage, port)
        ids = stage.emit(2)  # fewer refusals in a row than open the circuit breaker
        stage.wait_until_all("delivered")
    assert sorted(runner.accepted) == sorted(map(str, ids))
    for sent in runner.sent.values():
        first, second, third = (at for at, _ in sent)
        assert second - first >= BACKOFF
        assert third - second >= 2 * BACKOFF


def test_a_lost_answer_is_the_one_reason_to_send_again_and_then_the_same_bytes(
    make_stage: MakeStage, port: int
) -> None:
    runner = Runner()
    runner.hang_up_first = 1
    with Receiver(runner, port=port):
        stage = deployment(make_stage, port)
        ids = stage.emit(4)
        stage.wait_until_all("delivered")
    assert set(runner.sent) == set(map(str, ids))
    for sent in runner.sent.values():
        (_, first), (_, second) = sent
        assert first == second
        assert json.loads(first)["data"] == {"do": "pass"}
