"""The parts of an event that may contain secrets, as commands print them."""

from __future__ import annotations

from typing import Any, NamedTuple

from outbox.admin.job_view import masked_payload
from outbox.admin.masking import Masking
from outbox.core import Outbox
from outbox.storage.models import OutboxEvent


class Content(NamedTuple):
    """The payload and the headers of an event, as they are printed."""

    payload: Any
    headers: Any


def masked_content(box: Outbox, event: OutboxEvent) -> Content:
    """Return the content as the application's redaction and the masks leave it."""
    masking = Masking(box.settings.masked_keys)
    payload = box.registry.redactions.displayed(event.event_type, event.payload)
    if payload == event.payload:
        payload = masked_payload(event, masking)
    elif not isinstance(payload, str):  # a text says why nothing is displayed
        payload = masking.masked(payload)
    return Content(payload, masking.masked(event.headers))
