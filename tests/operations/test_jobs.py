"""Operators' actions on a table that holds both events and jobs."""

from contextlib import closing
from typing import Any

import pytest
from dramatiq.brokers.stub import StubBroker

import outbox
from outbox.core import Outbox
from outbox.errors import SettingsError
from outbox.operations.filters import Filter
from outbox.storage.models import DELIVERED, FAILED, PENDING
from outbox.webhooks.webhook import Webhook
from tests.operations.changing import change_all, count_all, replay_to
from tests.support.jobs import declare, enqueued, send
from tests.support.receiver import Receiver
from tests.support.table import change, deliver_all, emit_one, stored


def test_a_replay_to_a_webhook_posts_no_job(box: Outbox, stub_broker: StubBroker) -> None:
    with Receiver() as receiver, closing(Webhook("customer", receiver.url)) as webhook:
        outbox.add_destination(webhook)
        job, event = send(declare("order.placed"), "a secret"), emit_one()
        deliver_all(box)
        assert count_all(box, replay_to(box, "customer")) == 1
        assert change_all(box, replay_to(box, "customer")) == 1
        assert [stored(each).status for each in (job, event)] == [DELIVERED, PENDING]
        deliver_all(box)
        assert len(receiver.requests) == 2
        assert not any(b"a secret" in request.body for request in receiver.requests)
        assert len(enqueued(stub_broker)) == 1


def test_retry_failed_events_selects_jobs_by_their_actor(box: Outbox, charge: Any) -> None:
    job, event = send(charge, 1), emit_one("charge")
    for row in (job, event):
        change(row, status=FAILED, next_attempt_at=None)
    assert box.retry_failed_events(actor="charge") == 1
    assert [stored(row).status for row in (job, event)] == [PENDING, FAILED]
    change(job, status=FAILED, next_attempt_at=None)
    assert box.retry_failed_events(event_type="charge") == 1
    assert [stored(row).status for row in (job, event)] == [FAILED, PENDING]
    assert box.retry_failed_events() == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "mail"},
        {"actor": "a", "kind": "event"},
        {"actor": "a", "event_type": "t"},
        {"kind": "job", "event_type": "t"},
    ],
)
def test_a_filter_that_can_match_nothing_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(SettingsError):
        Filter(**fields)  # type: ignore[arg-type]
