"""Drains that fail are counted, and a process says that it delivers nothing."""

import json
from typing import Any

import pytest
from playhouse.pool import MaxConnectionsExceeded

import outbox
from outbox.admin.doctor.check import OK, PROBLEM
from outbox.core import Outbox
from outbox.delivery.drain_failures import ERROR_LENGTH, DrainFailures
from outbox.storage.operator_models import Process
from outbox.telemetry.process_reports import WORKER
from tests.admin.doctor.findings import finding_of
from tests.conftest import Configure
from tests.support.table import emit, on_postgres


@on_postgres
def test_a_process_that_gets_no_connection_says_so(configure: Configure, database: Any) -> None:
    box = configure(publish_seconds=10)
    outbox.handler("*", name="taker")(lambda _: None)
    emit(1)
    database.close()
    size, timeout = database._max_connections, database._wait_timeout
    taken = database._connect()
    database._max_connections, database._wait_timeout = 1, None
    try:
        for _ in range(3):
            with pytest.raises(MaxConnectionsExceeded):
                box.drain()
        box.reporter._try(lambda: box.reporter._report(WORKER))  # as its thread does
    finally:
        database._max_connections, database._wait_timeout = size, timeout
        database._close(taken)
    assert box.counters["drains_failed"] == 3
    found = finding_of(box, "drains")
    assert (found.level, "last 3 drains have failed" in found.what) == (PROBLEM, True)
    assert "MaxConnectionsExceeded" in found.what
    box.drain()
    box.reporter.report_now()
    assert finding_of(box, "drains").level == OK


def test_any_error_can_be_published(box: Outbox) -> None:
    failures = box.drain_failures
    with pytest.raises(ValueError, match="no"), failures.watching():
        raise ValueError("no\x00 \ud800\n" + "x" * 1000)
    box.reporter.report_now()
    (row,) = Process.select().execute(box.database)
    assert row.details["drain_failures"]["in_a_row"] == 1
    assert len(row.details["drain_failures"]["error"]) == ERROR_LENGTH
    json.dumps(row.details).encode()


def test_a_success_ends_the_series_of_failures(box: Outbox) -> None:
    failures = DrainFailures(box.counters)
    with pytest.raises(ValueError, match="no"), failures.watching():
        raise ValueError("no")
    assert failures.report()["in_a_row"] == 1
    with failures.watching():
        pass
    assert failures.report() == {}
