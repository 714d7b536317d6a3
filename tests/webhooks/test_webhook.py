"""A webhook in an outbox: from emitted to delivered, on every database."""

import json
import logging
from contextlib import ExitStack
from datetime import timedelta

import pytest

from outbox import webhooks
from outbox.core import Outbox
from outbox.storage.models import DELIVERED, FAILED, PENDING
from outbox.webhooks.webhook import Webhook
from tests.conftest import Configure
from tests.support.receiver import Receiver, answers, never_answers
from tests.support.servers import free_port
from tests.support.table import change, emit, emit_one, error_of, let_pass, statuses, stored
from tests.webhooks.deliveries import SECRET, MakeWebhook


def test_events_arrive_and_can_be_verified(box: Outbox, make_webhook: MakeWebhook) -> None:
    with Receiver() as receiver:
        box.registry.add(make_webhook(receiver.url, secret=SECRET, events=["order.*"]))
        events = emit(20, payload={"text": "Grüße"}, tenant_id="t")
        box.process_pending_events()
        assert statuses() == {DELIVERED: 20}
        ids = [webhooks.verify(request.headers, request.body, SECRET) for request in receiver.requests]
        bodies = [json.loads(request.body) for request in receiver.requests]
    assert sorted(ids) == sorted(str(event.id) for event in events)
    assert all(body["data"] == {"text": "Grüße"} and body["tenant_id"] == "t" for body in bodies)


def test_a_refusal_costs_an_attempt_and_is_stored_as_the_error(box: Outbox, make_webhook: MakeWebhook) -> None:
    with Receiver(answers(500, b"out of order"), answers()) as receiver:
        box.registry.add(make_webhook(receiver.url))
        event = emit_one()
        box.process_pending_events()
        row = stored(event)
        assert (row.status, row.attempts) == (PENDING, 1)
        assert row.error_message == "hook: HTTP 500 Whatever: out of order"
        let_pass(hours=1)
        change(event, created_at=row.created_at)
        box.process_pending_events()
        assert (stored(event).status, stored(event).attempts) == (DELIVERED, 2)
        first, second = receiver.requests
        assert first.body == second.body
        assert first.headers["webhook-id"] == second.headers["webhook-id"]


@pytest.mark.parametrize(("status", "attempts"), [(500, 1), (503, 0)])
def test_retry_after_decides_when_it_is_tried_again(
    box: Outbox, make_webhook: MakeWebhook, status: int, attempts: int
) -> None:
    with Receiver(answers(status, retry_after="3000")) as receiver:
        box.registry.add(make_webhook(receiver.url))
        event = emit_one()
        box.process_pending_events()
    row = stored(event)
    assert (row.status, row.attempts) == (PENDING, attempts)
    wait = row.next_attempt_at - row.updated_at
    assert timedelta(seconds=2990) < wait < timedelta(seconds=3010)
    assert set(row.progress["hook"]) >= {"not_before", "error"}


def test_status_410_fails_the_event_for_good(box: Outbox, make_webhook: MakeWebhook) -> None:
    with Receiver(answers(410, b"no such customer")) as receiver:
        box.registry.add(make_webhook(receiver.url))
        event = emit_one()
        box.process_pending_events()
    assert stored(event).status == FAILED
    assert error_of(event) == "hook: HTTP 410 Whatever: no such customer"


def test_an_unreachable_receiver_costs_no_attempt(box: Outbox, make_webhook: MakeWebhook) -> None:
    box.registry.add(make_webhook(f"http://127.0.0.1:{free_port()}/"))
    event = emit_one()
    box.process_pending_events()
    row = stored(event)
    assert (row.status, row.attempts, row.progress["hook"]["waits"]) == (PENDING, 0, 1)
    assert str(row.error_message).startswith("hook: Connection refused while connecting to 127.0.0.1, port ")


def test_a_slow_destination_does_not_delay_the_other(configure: Configure, make_webhook: MakeWebhook) -> None:
    box = configure(max_attempts=3)
    with Receiver() as receiver, Receiver(never_answers) as mute:
        box.registry.add(make_webhook(receiver.url))
        slow = make_webhook(mute.url, timeout=1)
        slow.name = "slow"
        box.registry.add(slow)
        event = emit_one()
        box.process_pending_events()
    progress = stored(event).progress
    assert progress["hook"]["state"] == DELIVERED
    assert error_of(event) == "slow: timed out while waiting for the response"


def test_each_of_several_webhooks_has_its_own_outcome(box: Outbox) -> None:
    """One refuses, one is unavailable, one fails for good, one succeeds: each has its own retry time, attempts and
    end, and no webhook gets an event again that it has."""
    replies = {
        "refuses": [answers(500, b"no", retry_after="60"), answers()],
        "is-away": [answers(503, b"later", retry_after="7200"), answers()],
        "is-gone": [answers(410, b"never again")],
        "is-well": [answers()],
    }
    with ExitStack() as ending:
        receivers = {name: ending.enter_context(Receiver(*each)) for name, each in replies.items()}
        for name, receiver in receivers.items():
            webhook = Webhook(name, receiver.url)
            ending.callback(webhook.close)
            box.registry.add(webhook)

        def sent() -> list[int]:
            return [len(receiver.requests) for receiver in receivers.values()]

        event = emit_one()
        box.process_pending_events()
        row = stored(event)
        assert (row.status, sent()) == (PENDING, [1, 1, 1, 1])
        assert {name: entry["state"] for name, entry in row.progress.items()} == {
            "refuses": "waiting",
            "is-away": "waiting",
            "is-gone": FAILED,
            "is-well": DELIVERED,
        }
        assert [row.progress[name].get("attempts", 0) for name in ("refuses", "is-away")] == [1, 0]
        assert sorted(error_of(event).split("; ")) == [
            "is-away: HTTP 503 Whatever: later",
            "is-gone: HTTP 410 Whatever: never again",
            "refuses: HTTP 500 Whatever: no",
        ]
        assert timedelta(seconds=50) < row.next_attempt_at - row.updated_at < timedelta(seconds=70)

        let_pass(seconds=70)
        box.process_pending_events()
        row = stored(event)
        assert (row.status, sent()) == (PENDING, [2, 1, 1, 1])
        assert row.progress["refuses"] == {"state": DELIVERED, "attempts": 2}
        assert "refuses" not in error_of(event)

        let_pass(hours=2)
        box.process_pending_events()
        row = stored(event)
        assert (row.status, sent()) == (FAILED, [2, 2, 1, 1])
        assert row.progress["is-away"] == {"state": DELIVERED, "attempts": 1}
        assert error_of(event) == "is-gone: HTTP 410 Whatever: never again"


def test_attempts_are_counted_for_each_webhook(configure: Configure) -> None:
    """A webhook that has used up its attempts does not take any from the other."""
    box = configure(max_attempts=3)
    away, refusal = answers(503, b"later", retry_after="60"), answers(500, b"no", retry_after="60")
    with Receiver(refusal) as refusing, Receiver(away, away, refusal, answers()) as returning, ExitStack() as ending:
        for name, receiver in (("refuses", refusing), ("returns", returning)):
            webhook = Webhook(name, receiver.url)
            ending.callback(webhook.close)
            box.registry.add(webhook)
        event = emit_one()
        for _ in range(3):
            box.process_pending_events()
            let_pass(seconds=70)
        row = stored(event)
        assert (row.status, row.attempts) == (PENDING, 1)
        assert {name: (entry["state"], entry["attempts"]) for name, entry in row.progress.items()} == {
            "refuses": (FAILED, 3),
            "returns": ("waiting", 1),
        }
        box.process_pending_events()
        assert stored(event).progress["returns"] == {"state": DELIVERED, "attempts": 2}
        assert (len(refusing.requests), len(returning.requests)) == (3, 4)


def test_secrets_are_neither_logged_nor_stored(
    box: Outbox, make_webhook: MakeWebhook, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with Receiver(answers(500), answers(410)) as receiver:
        url = f"http://customer:passw0rd@127.0.0.1:{receiver.port}/?key=query-key"
        box.registry.add(make_webhook(url, secret=SECRET, headers={"x-api-key": "header-key"}))
        events = emit(2)
        box.process_pending_events()
        let_pass(hours=1)
        box.process_pending_events()
    assert caplog.records
    shown = caplog.text + repr(box.registry.destinations) + "".join(map(error_of, events))
    for text in ("passw0rd", "query-key", "header-key", SECRET.removeprefix("whsec_"), "customer:"):
        assert text not in shown
