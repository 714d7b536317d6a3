"""Endpoints that were away while events piled up, that hang, talk nonsense or drip: others don't notice."""

import json
import math
import socket
import time
from collections import Counter

import pytest

from outbox.throttle.circuit_breaker import RAMP_DOUBLES_EVERY, RAMP_PER_SECOND
from tests.support.processes import MakeStage
from tests.support.receiver import (
    Exchange,
    Receiver,
    Reply,
    answers,
    drips_its_headers,
    hints_for_ever,
    never_answers,
    says,
)
from tests.support.servers import free_port

WORKERS = 2
PER_SECOND = 40.0
BACKLOG = 5_000
# How many arrivals are looked at.
SEEN = 60


def allowed(seconds: float) -> float:
    """How many may have arrived so long after it was back: the ramp, up to the limit, and what may go at once."""
    steep = RAMP_DOUBLES_EVERY * math.log2(PER_SECOND / RAMP_PER_SECOND)
    ramp = RAMP_PER_SECOND * RAMP_DOUBLES_EVERY / math.log(2) * (2 ** (min(seconds, steep) / RAMP_DOUBLES_EVERY) - 1)
    return 1 + ramp + PER_SECOND * max(0.0, seconds - steep) + max(1.0, PER_SECOND * 0.1)


def test_a_backlog_of_thousands_comes_no_faster_than_the_limit_and_the_ramp(make_stage: MakeStage) -> None:
    """How many have come by when, never how fast: a machine that is slow makes them later, not sooner."""
    arrived: list[float] = []

    def note(exchange: Exchange) -> None:
        arrived.append(time.monotonic())
        answers()(exchange)

    stage = make_stage(backoff_base_seconds=1, backoff_cap_seconds=1)
    port = free_port()
    hook = {"name": "hook", "url": f"http://127.0.0.1:{port}/hook", "per_second": PER_SECOND}
    stage.environment["OUTBOX_TEST_HOOKS"] = json.dumps([hook])

    # It is away: a few are tried, and then the circuit breaker opens.
    stage.emit(100)
    first = stage.worker("tests.apps.hooks")
    stage.scheduler()
    not_tried = "SELECT count(*) FROM outbox_event WHERE error_message LIKE '%%circuit breaker is open%%'"
    with stage.box.dialect.connection():
        stage.wait_for(lambda: stage.box.dialect.run(not_tried).fetchone()[0] > 50, "the circuit breaker to open")
    first.kill()

    stage.emit(BACKLOG)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
    begun_at = time.monotonic()
    with Receiver(note, port=port):
        for _ in range(WORKERS):
            stage.worker("tests.apps.hooks")
        stage.wait_for(lambda: len(arrived) >= SEEN, "it gets events again")
    early = [number for number, at in enumerate(arrived) if number + 1 > allowed(at - begun_at)]
    assert early == []
    assert stage.statuses()["pending"] + stage.statuses()["sending"] > BACKLOG - 2 * SEEN


@pytest.mark.parametrize(
    ("misbehave", "error"),
    [
        (never_answers, "timed out while waiting for the response"),
        (drips_its_headers, "timed out while waiting for the response"),
        (says(b"\x00\xff this is no HTTP \r\n\r\n"), "no HTTP response"),
        (hints_for_ever, "no HTTP response: more than 32 interim responses"),
    ],
    ids=["hangs", "drips", "talks nonsense", "sends hints for ever"],
)
def test_one_that_misbehaves_costs_another_nothing_and_gets_the_same_bytes_when_it_is_well(
    make_stage: MakeStage, misbehave: Reply, error: str
) -> None:
    stage = make_stage(backoff_base_seconds=1, backoff_cap_seconds=1)
    with Receiver(misbehave) as ill, Receiver() as well:
        hooks = [{"name": "ill", "url": ill.url, "timeout": 1}, {"name": "well", "url": well.url}]
        stage.environment["OUTBOX_TEST_HOOKS"] = json.dumps(hooks)
        worker = stage.worker("tests.apps.hooks")
        stage.scheduler()
        ids = stage.emit(3, max_attempts=1)
        stage.wait_for(lambda: len(well.requests) == len(ids), "the other one has them all")
        stage.wait_for(lambda: all(f"{id}>: ill: {error}" in worker.said() for id in ids), "it is said why")
        assert set(stage.statuses()) <= {"pending", "sending"}
        ill.then(answers())
        stage.wait_until_all("delivered")
    assert Counter(request.headers["webhook-id"] for request in well.requests) == Counter(map(str, ids))
    sent = {(request.headers["webhook-id"], request.body) for request in ill.requests}
    assert sent == {(request.headers["webhook-id"], request.body) for request in well.requests}
    assert worker.running
