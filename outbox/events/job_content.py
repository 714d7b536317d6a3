"""What the payload of a job holds: a Dramatiq message, or a message that only the application's encoder can read.

`dramatiq/job.py` writes it. It is described here, in a lower layer, for the pages and commands that show jobs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

# The only key of a payload that holds a message in another form than JSON.
OPAQUE_KEY = "outbox_base64"


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
