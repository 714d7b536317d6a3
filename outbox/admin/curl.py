"""Write the request of a webhook as a curl command, so that an operator can reproduce it.

The URL, the signature and the other headers of the webhook may be secret, and are left out; so are the secrets in the
payload, which the caller has masked. The body is that of the format "json".
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from typing import Any

from outbox.events import envelope
from outbox.events.event import Event
from outbox.storage.models import EVENT, OutboxEvent
from outbox.storage.operator_models import Process

# A longer command can't be passed to a shell everywhere.
MAX_LENGTH = 100_000

WEBHOOK = "Webhook"


def is_sent_by_webhook(processes: Iterable[Process], destinations: Iterable[str]) -> bool:
    """Return whether one of the destinations is a webhook, as the workers report them."""
    kinds = [process.details.get("destinations", {}) for process in processes]
    return any(each.get(name, {}).get("kind") == WEBHOOK for name in destinations for each in kinds)


def curl_command(event: OutboxEvent, payload: Any, headers: Any) -> str | None:
    """Return the command for an event with this payload and these headers, both masked; None if it is too long."""
    if event.kind != EVENT or not isinstance(payload, dict):
        return None
    sent = Event.received(
        id=event.id,
        event_type=event.event_type,
        aggregate_type=event.aggregate_type,
        aggregate_id=event.aggregate_id,
        body=json.dumps(payload, ensure_ascii=False),
        headers=json.dumps(headers),
        correlation_id=event.correlation_id,
        tenant_id=event.tenant_id,
        created_at=event.created_at,
        attempt=1,
        max_attempts=event.max_attempts,
        ordering_key=event.ordering_key,
        seq=event.seq,
    )
    given = ["content-type: application/json", f"webhook-id: {event.id}"]
    if event.ordering_key is not None:
        given.append(f"outbox-seq: {event.seq}")
    parts = ['curl --request POST "$URL"', *(f"--header {shlex.quote(each)}" for each in given)]
    parts += ['--header "webhook-timestamp: $(date +%s)"', '--header "webhook-signature: $SIGNATURE"']
    parts.append(f"--data-raw {shlex.quote(envelope.as_json(sent).decode())}")
    text = " \\\n  ".join(parts)
    return text if len(text) <= MAX_LENGTH else None
