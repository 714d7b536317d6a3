"""The idempotency keys of jobs, as they are stored.

Events and jobs share the unique index over type and key, so a job's key has a prefix. Without it, a job of the actor
`invoice` with the key "Order:42" would count as a duplicate of the event `invoice` of that order.
"""

from __future__ import annotations

from outbox.storage.models import KEY_LENGTH
from outbox.text import check_text

PREFIX = "job:"


def job_key(key: str) -> str:
    """Return the key as it is stored; raise InvalidEvent if it is not text of a suitable length."""
    return PREFIX + check_text(key, "idempotency_key", KEY_LENGTH - len(PREFIX))


def shown_key(stored: str) -> str:
    """Return a stored key of a job as the application knows it."""
    return stored.removeprefix(PREFIX)
