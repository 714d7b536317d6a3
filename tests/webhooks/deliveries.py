"""Make events and deliver them with a webhook, without a database."""

import json
from collections.abc import Callable, Generator, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

from outbox.destinations.outcome import Failed, Outcome, Retry
from outbox.destinations.protocol import Lease
from outbox.errors import Unavailable
from outbox.events.event import Event
from outbox.storage.ids import uuid7
from outbox.webhooks.transport.protocol import NoResponse, Response, SendResult, WebhookRequest
from outbox.webhooks.transport.resolver import LookupFunction, Resolver, SocketAddress
from outbox.webhooks.webhook import Webhook

NOW = datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC)
SECRET = "whsec_c2VjcmV0IHdpdGggdHdlbnR5LWZvdXIgYnl0ZXMh"
OTHER_SECRET = "whsec_YW5vdGhlciB3aXRoIHR3ZW50eS1mb3VyIGJ5dGU="

K = TypeVar("K")
MakeWebhook = Callable[..., Webhook]


def make_event(payload: Any = None, *, id: UUID | None = None, **fields: Any) -> Event:
    """Return an event as a claim reads it from the table."""
    values = {
        "id": str(uuid7() if id is None else id),
        "seq": 1,
        "aggregate_type": "Order",
        "aggregate_id": "7",
        "event_type": "order.placed",
        "ordering_key": None,
        "payload": payload
        if isinstance(payload, str)
        else json.dumps({"total": "9.90"} if payload is None else payload),
        "headers": json.dumps(fields.pop("headers", {})),
        "correlation_id": None,
        "tenant_id": None,
        "idempotency_key": "key",
        "claims": 1,
        "max_attempts": 5,
        "progress": None,
        "due_at": NOW,
        "created_at": NOW,
        "claimed_at": NOW,
        "kind": "event",
        "order_state": None,
        "destinations_version": None,
        "from_expired_lease": False,
    }
    return Event(tuple((values | fields).values()))


def deliver(webhook: Webhook, events: Iterable[Event], *, at_once: int = 1, seconds: float = 60) -> list[Outcome]:
    """Deliver the events, and return their outcomes in the same order."""
    events = list(events)
    outcomes = {
        event.id: outcome for event, outcome in webhook.deliver(events, Lease.lasting(seconds, at_once=at_once))
    }
    return [outcomes[event.id] for event in events]


def deliver_one(webhook: Webhook, event: Event | None = None, *, seconds: float = 60) -> Outcome:
    (outcome,) = deliver(webhook, [make_event() if event is None else event], seconds=seconds)
    return outcome


def resolving_with(webhook: Webhook, lookup: LookupFunction) -> Webhook:
    """Return the webhook, which has not delivered yet and looks up host names with this function."""
    transport: Any = webhook.transport
    transport._resolver = Resolver(lookup)
    return webhook


def resolving_to(webhook: Webhook, *found: SocketAddress) -> Webhook:
    """Return the webhook, for which every host name has these addresses."""
    return resolving_with(webhook, lambda host, port: list(found))


def retried(outcome: Outcome) -> str:
    """Return the error of a `Retry`, which costs an attempt."""
    assert isinstance(outcome, Retry), outcome
    return outcome.error


def unavailable(outcome: Outcome) -> str:
    """Return the error of an `Unavailable`, which costs no attempt."""
    assert isinstance(outcome, Unavailable), outcome
    return outcome.error


def failed(outcome: Outcome) -> str:
    assert isinstance(outcome, Failed), outcome
    return outcome.error


class ReversingTransport:
    """A transport of the user's own: it takes all requests, and yields the results in reverse order."""

    def exchange(
        self, requests: Iterator[tuple[K, WebhookRequest]], at_once: int
    ) -> Generator[tuple[K, SendResult], None, None]:
        for number, (key, _) in enumerate(reversed(list(requests))):
            yield key, NoResponse("nobody there") if number else Response(200)

    def close(self) -> None:
        pass


def make_large_event() -> Event:
    """Return an event of 20 megabytes, more than the system's buffers take.

    They are the name of a field: values would be looked for in the error, which takes two seconds of processor time.
    """
    return make_event({"x" * 20_000_000: None})
