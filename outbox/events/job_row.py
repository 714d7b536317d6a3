"""How a job is stored in a row of the table: its idempotency key, and the Dramatiq message in its payload.

`dramatiq/job.py` writes these rows. The format is described here, in a lower layer, for `cancel` and for the pages and
commands that show jobs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from outbox.events.validate import check_text
from outbox.storage.models import KEY_LENGTH

# Events and jobs share the unique index over type and key, so a job's key has a prefix. Without it, a job of the actor
# `invoice` with the key "Order:42" would count as a duplicate of the event `invoice` of that order.
PREFIX = "job:"

# The only key of a payload that holds a message in another form than JSON.
OPAQUE_KEY = "outbox_base64"


def job_key(key: str) -> str:
    """Return the key as it is stored; raise InvalidEvent if it is not text of a suitable length."""
    return PREFIX + check_text(key, "idempotency_key", KEY_LENGTH - len(PREFIX))


def shown_key(stored: str) -> str:
    """Return a stored key of a job as the application knows it."""
    return stored.removeprefix(PREFIX)


class JobContent(NamedTuple):
    """The parts of a message that are not columns of the row."""

    args: list[Any]
    kwargs: dict[str, Any]
    options: dict[str, Any]


def is_opaque(payload: object) -> bool:
    """Return whether a payload holds a message in a form that only its own encoder can read."""
    return isinstance(payload, dict) and OPAQUE_KEY in payload


def content_of(payload: object) -> JobContent | None:
    """Return the arguments and options of a message; None if it is opaque, or an encoder used other names."""
    if not isinstance(payload, dict) or is_opaque(payload):
        return None
    args, kwargs, options = payload.get("args"), payload.get("kwargs"), payload.get("options")
    if not isinstance(args, list) or not isinstance(kwargs, dict) or not isinstance(options, dict):
        return None
    return JobContent(args, kwargs, options)
