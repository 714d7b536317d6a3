"""Metrics of jobs, by actor."""

from typing import Any

from dramatiq.brokers.stub import StubBroker

import outbox
from outbox.admin.metrics import exposition
from outbox.core import Outbox
from outbox.telemetry.counters import MOST_NAMES, Counters, Series
from tests.support.jobs import declare, send
from tests.support.table import change, emit_one


def exposed(box: Outbox) -> list[str]:
    box.reporter.report_now()
    text = exposition(box)[0].decode()
    return [line for line in text.splitlines() if line.startswith("outbox_jobs_")]


def test_jobs_are_counted_by_actor(box: Outbox, charge: Any) -> None:
    outbox.ignore("*")
    emit_one("charge")
    assert exposed(box) == []
    send(charge, 1)
    broken = send(charge, 2)
    send(declare("remind"))
    change(broken, payload={"no": "message"}, max_attempts=1)
    box.process_pending_events()
    assert exposed(box) == [
        'outbox_jobs_stored_total{actor="charge"} 2.0',
        'outbox_jobs_stored_total{actor="remind"} 1.0',
        'outbox_jobs_enqueued_total{actor="charge"} 1.0',
        'outbox_jobs_enqueued_total{actor="remind"} 1.0',
        'outbox_jobs_failed_total{actor="charge"} 1.0',
        'outbox_jobs_failed_total{actor="remind"} 0.0',
    ]


def test_a_job_is_counted_as_stored_when_its_transaction_commits(box: Outbox, charge: Any) -> None:
    with box.database.atomic() as transaction:
        outbox.send(charge, 1)
        transaction.rollback()
    assert box.counters.take() == {}
    with box.database.atomic():
        outbox.send(charge, 2)
        outbox.send(charge, 3)
        assert box.counters.take() == {}
    assert box.counters.take() == {Series("emitted"): 2, Series("jobs_stored", (("actor", "charge"),)): 2}


def test_a_job_inside_manual_commit_is_counted_at_once(box: Outbox, charge: Any) -> None:
    box.database.connect(reuse_if_open=True)
    with box.database.manual_commit():
        outbox.send(charge, 1)
    assert box.counters.take() == {Series("emitted"): 1, Series("jobs_stored", (("actor", "charge"),)): 1}


def test_a_job_that_was_tried_before_is_counted_once(box: Outbox, charge: Any, stub_broker: StubBroker) -> None:
    job = send(charge, 1)
    change(job, attempts=1, progress={"dramatiq": {"attempts": 1}})
    box.process_pending_events()
    assert box.counters.take()[Series("jobs_enqueued", (("actor", "charge"),))] == 1


def test_the_number_of_actors_is_bounded() -> None:
    counters = Counters()
    names = [f"actor-{number:03}" for number in range(MOST_NAMES + 10)]
    counters.add_jobs("jobs_stored", names)
    counters.add_jobs("jobs_failed", [names[0], names[-1]])
    counted = counters.take()
    assert len({series.labels for series in counted}) == MOST_NAMES + 1
    assert counted[Series("jobs_stored", (("actor", "other"),))] == 10
    assert counted[Series("jobs_failed", (("actor", names[0]),))] == 1
    assert counted[Series("jobs_failed", (("actor", "other"),))] == 1


def test_processes_that_have_seen_the_same_names_count_the_same_of_them_by_themselves() -> None:
    names = [f"type-{number:03}" for number in range(MOST_NAMES + 10)]
    one, other = Counters(), Counters()
    for counters, seen in ((one, names), (other, names[::-1])):
        counters.observe_types(seen, [0.02] * len(seen))
        counters.take()
        counters.observe_types(seen, [0.02] * len(seen))
    counted = one.take()
    assert counted == other.take()
    assert {labels[0][1] for name, labels in counted if name == "types_delivered"} == {*names[:MOST_NAMES], "other"}
    assert counted[Series("types_delivered", (("type", "other"),))] == 10
    assert counted[Series("type_bucket", (("type", names[0]), ("le", "0.05")))] == 1
