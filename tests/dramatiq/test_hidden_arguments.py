"""Dramatiq's log names a message without its arguments: they may be a whole event."""

import logging
import signal
from collections.abc import Iterator
from queue import PriorityQueue
from typing import Any

import dramatiq
import dramatiq.worker
import pytest
from dramatiq.brokers.stub import StubBroker

from outbox.dramatiq import hide_arguments_in_logs, middleware, worker_shutdown
from outbox.dramatiq.hidden_arguments import RecordFactory
from tests.conftest import Configure
from tests.support.processes import BIN, MakeStage, make_stage

__all__ = ["make_stage"]

NEVER = "never to be seen"


@pytest.fixture(autouse=True)
def _records_as_they_were() -> Iterator[None]:
    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(logging.LogRecord)
    yield
    logging.setLogRecordFactory(before)


def fail_once(caplog: pytest.LogCaptureFixture, *, hide: bool) -> str:
    """Let an actor fail in a worker of Dramatiq's; return what was logged."""
    broker = StubBroker()

    @dramatiq.actor(broker=broker, max_retries=0)
    def charge(envelope: dict[str, Any], *, note: str) -> None:
        raise ValueError("declined")

    if hide:
        hide_arguments_in_logs()
        hide_arguments_in_logs(broker)
    worker = dramatiq.Worker(broker, worker_threads=1, worker_timeout=50)
    caplog.set_level(logging.DEBUG)
    worker.start()
    try:
        charge.send({"card": NEVER}, note=NEVER)
        broker.join("default", fail_fast=False)
        worker.join()
    finally:
        worker.stop()
    assert "declined" in caplog.text
    return caplog.text


def test_dramatiq_logs_the_arguments_unless_they_are_hidden(caplog: pytest.LogCaptureFixture) -> None:
    assert f"Failed to process message charge({{'card': '{NEVER}'}}" in fail_once(caplog, hide=False)


def test_hidden_the_actor_and_the_id_are_logged_with_the_traceback(caplog: pytest.LogCaptureFixture) -> None:
    said = fail_once(caplog, hide=True)
    assert NEVER not in said
    assert "Failed to process message charge(…) " in said
    assert "Received args='…' kwargs='…'." in said
    assert "ValueError: declined" in said


class Unreachable(dramatiq.Consumer):
    """The consumer of a broker that can't be reached at the first acknowledgement."""

    def __init__(self) -> None:
        self.acknowledged = 0

    def ack(self, message: Any) -> None:
        self.acknowledged += 1
        if self.acknowledged == 1:
            raise dramatiq.ConnectionClosed("the broker is away")


def test_the_consumer_of_a_queue_does_not_log_them_either(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its logger has the name of the queue, and may be made later than the others."""
    hide_arguments_in_logs()
    monkeypatch.setattr(dramatiq.worker, "POST_PROCESS_MESSAGE_RETRY_DELAY_SECS", 0)
    thread = dramatiq.worker.ConsumerThread(
        broker=StubBroker(), queue_name="a queue", prefetch=1, work_queue=PriorityQueue(), worker_timeout=50
    )
    thread.consumer = Unreachable()
    message: dramatiq.Message[None] = dramatiq.Message("a queue", "charge", ({"card": NEVER},), {"note": NEVER}, {})
    thread.post_process_message(dramatiq.MessageProxy(message))
    assert f"Failed to post_process_message(charge(…) {message.message_id})" in caplog.text
    assert NEVER not in caplog.text


def test_an_outbox_worker_hides_them(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    configure()
    monkeypatch.setattr(worker_shutdown, "prepare", lambda: None)
    broker = StubBroker(middleware=[])
    middleware.Lifecycle(lambda broker: None).before_worker_boot(broker, dramatiq.Worker(broker))
    assert isinstance(logging.getLogRecordFactory(), RecordFactory)


def test_records_of_other_loggers_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    hide_arguments_in_logs()
    message: dramatiq.Message[None] = dramatiq.Message("a queue", "charge", (NEVER,), {}, {})
    logging.getLogger("the.application").warning("of %s", message)
    logging.getLogger("the.application").warning("%(card)s", {"card": NEVER})
    assert caplog.text.count(NEVER) == 2


def test_a_record_that_was_sent_by_another_process_can_be_made_from_its_fields() -> None:
    hide_arguments_in_logs()
    record = logging.makeLogRecord({"name": "another.process", "msg": "hello"})
    assert (record.name, record.getMessage()) == ("another.process", "hello")


def test_in_a_real_worker_the_event_of_a_failing_actor_is_not_logged(make_stage: MakeStage) -> None:
    stage = make_stage()
    command = (BIN / "outbox", "worker", "tests.apps.failing_actor", "-p", "1", "-t", "2", "-v")
    worker = stage.start("worker", *command, ready="ready for action")
    stage.emit(1, card=NEVER)
    stage.wake()
    stage.wait_for(lambda: "Failed to process message" in worker.said(), "the actor fails")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert "fails(…) " in worker.said()
    assert NEVER not in worker.said()
