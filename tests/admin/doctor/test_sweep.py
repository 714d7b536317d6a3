"""The doctor's check that sends a sweep, and waits for a worker to take it."""

import threading
import uuid
from typing import Any

import pytest

from outbox.admin.doctor.check import OK, PROBLEM, Finding, Thresholds
from outbox.admin.doctor.run_checks import run_checks
from outbox.core import Outbox
from outbox.dramatiq import sweep_check, wakeup
from outbox.dramatiq.broker import find_broker
from outbox.telemetry.process_reports import WORKER
from tests.admin.doctor.published_processes import publish_process
from tests.conftest import Configure
from tests.support.servers import Redis, wait_until


@pytest.fixture
def box(configure: Configure, redis_server: Redis) -> Outbox:
    return configure(redis_url=redis_server.url, namespace=f"test-{uuid.uuid4().hex}")


def findings(box: Outbox, **thresholds: Any) -> list[Finding]:
    return run_checks(box, thresholds=Thresholds(**thresholds), checks=[sweep_check.SWEEP])


def waiting(box: Outbox) -> int:
    broker: Any = find_broker(box.settings)
    return int(broker.client.llen(f"{broker.namespace}:outbox"))


def test_without_a_worker_none_is_sent(box: Outbox) -> None:
    assert findings(box) == []
    assert waiting(box) == 0


def test_that_no_worker_takes_is_a_problem_and_says_what_may_differ(box: Outbox) -> None:
    publish_process(box, WORKER)
    (found,) = findings(box, sweep_seconds=0.1)
    assert found.level == PROBLEM
    assert "no worker took it" in found.what
    assert "OUTBOX_NAMESPACE" in str(found.advice)
    assert waiting(box) == 1


def test_that_can_not_be_sent_is_a_problem_without_the_password(configure: Configure) -> None:
    box = configure(redis_url="redis://:hush@127.0.0.1:1/0")
    publish_process(box, WORKER)
    (found,) = findings(box)
    assert found.level == PROBLEM
    assert "Could not send a sweep" in found.what
    assert "hush" not in repr(found)


def test_that_a_worker_takes_is_well(box: Outbox) -> None:
    publish_process(box, WORKER)
    broker = find_broker(box.settings)

    def work() -> None:
        assert wait_until(lambda: waiting(box) == 1)
        wakeup.clear_flag_then(wakeup.flag_for(broker, "outbox"), lambda: None)

    worker = threading.Thread(target=work)
    worker.start()
    (found,) = findings(box)
    worker.join()
    assert found.level == OK
