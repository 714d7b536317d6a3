"""Show a job as a Dramatiq message: the actor, its arguments, the queue, and the id and options of the message.

A job is stored in the columns of an event (`dramatiq/job.py`). Commands and pages show it with the words of Dramatiq.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from outbox.admin.masking import MASKED, Masking
from outbox.encryption.stored_text import key_id_of, text_of
from outbox.events.job_row import OPAQUE_KEY, content_of, is_opaque, shown_key
from outbox.storage.models import JOB, OutboxEvent
from outbox.text import shorten

# The arguments of a job in a list are cut to this length.
ARGUMENTS_LENGTH = 120
OPAQUE = "opaque: only the application's encoder can read this message"


@dataclass(frozen=True, slots=True)
class JobView:
    """A job, in Dramatiq's words. The arguments and options are None if the message is opaque, or was not read."""

    actor: str
    queue: str
    message_id: str
    # None if the application has given no key.
    key: str | None
    args: list[Any] | None
    kwargs: dict[str, Any] | None
    options: dict[str, Any] | None
    # Why the message can't be shown, if it is opaque.
    opaque_reason: str = OPAQUE

    @property
    def is_opaque(self) -> bool:
        return self.args is None

    @property
    def arguments(self) -> str:
        """Return the arguments as they stand in a call: `42, currency="EUR"`; or that the message is opaque."""
        if self.args is None or self.kwargs is None:
            return self.opaque_reason
        positional = [json.dumps(value, ensure_ascii=False) for value in self.args]
        named = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in self.kwargs.items()]
        return ", ".join([*positional, *named])


def job_view(row: OutboxEvent, payload: object, masking: Masking | None = None) -> JobView:
    """Return a job as it is shown. With a masking, secrets among the arguments and options are masked by their names.

    An opaque message has no names to mask by, so none of its content is shown.
    """
    content = content_of(payload if masking is None else masking.masked(payload))
    key, encrypted = shown_key(row.idempotency_key), text_of(payload)
    return JobView(
        actor=row.event_type,
        queue=row.aggregate_type,
        message_id=row.aggregate_id,
        key=None if key == str(row.id) else key,
        args=None if content is None else content.args,
        kwargs=None if content is None else content.kwargs,
        options=None if content is None else content.options,
        opaque_reason=OPAQUE if encrypted is None else f"encrypted with the key {key_id_of(encrypted)}",
    )


def masked_payload(row: OutboxEvent, masking: Masking) -> Any:
    """Return the payload of an event or a job with its secrets masked; of an opaque message, nothing is shown."""
    return {OPAQUE_KEY: MASKED} if row.kind == JOB and is_opaque(row.payload) else masking.masked(row.payload)


def listed_arguments(row: OutboxEvent, payload: object, masking: Masking | None = None) -> str:
    """Return the arguments of a job for a list, cut if they are long; "…" for a message that was too long to read.

    A payload that is a text is the application's redaction, and returned as it is.
    """
    if isinstance(payload, str):
        return shorten(payload, ARGUMENTS_LENGTH)
    return "…" if payload is None else shorten(job_view(row, payload, masking).arguments, ARGUMENTS_LENGTH)
