"""The format of a job: a Dramatiq message as a row of the outbox's table. Only this module writes it.

| column | content |
|---|---|
| `kind` | `job` |
| `event_type` | the name of the actor |
| `aggregate_type`, `aggregate_id` | the queue, and the id of the message |
| `payload` | the message, whole, as Dramatiq's encoder wrote it; if that is not JSON, `{"outbox_base64": "…"}` |
| `headers` | the trace context; `broker_role` and `broker`: which broker the message is for |
| `idempotency_key` | the key with a prefix (`events/job_row.py`); by default the id of the row |
"""

from __future__ import annotations

import base64
import json
from enum import StrEnum
from typing import Any
from uuid import UUID

import dramatiq
from dramatiq.encoder import JSONEncoder
from dramatiq.message import get_encoder

from outbox.errors import InvalidEvent, describe
from outbox.events.context import inherited_context
from outbox.events.encoding import encode_object
from outbox.events.event import Event
from outbox.events.job_row import OPAQUE_KEY, job_key
from outbox.events.validate import UNORDERED, Draft, check_text
from outbox.settings import Settings
from outbox.storage.models import CONTEXT_LENGTH, JOB, KEY_LENGTH, NAME_LENGTH, OutboxEvent
from outbox.telemetry import tracing

# The headers that say which broker the message is for, unless the settings name it: its role, and what it is.
_ROLE, _DESCRIPTION = "broker_role", "broker"
# How a payload begins that is not JSON.
_OPAQUE_START = f'{{"{OPAQUE_KEY}":'

Message = dramatiq.Message[Any]


class BrokerRole(StrEnum):
    """Which broker of a worker may enqueue a message. On any other broker, no worker would run it: it would be lost."""

    # The global broker of every worker: it is the one that the settings name. No header is stored.
    SETTINGS = "settings"
    # The global broker that the application has set: only a worker that imports its module has it.
    OWN = "own"
    # Not the global broker: only a worker that has the actor can find it.
    OTHER = "other"


def draft_of(
    message: Message,
    id: UUID,
    settings: Settings,
    *,
    broker: dict[str, str] | None,
    key: str | None = None,
    subject: str | None = None,
    due: tuple[str | None, float],
) -> Draft:
    """Return the row to insert for this message; raise InvalidEvent if it can't be stored.

    `broker` are the headers that say what its broker is (`broker_headers`). `due` says when the job is due
    (`validate.due_time`).
    """
    correlation_id, tenant_id = inherited_context()
    message_id = check_text(message.message_id, "the message's id", NAME_LENGTH)
    headers = tracing.with_context(broker)
    return Draft(
        id,
        check_text(message.queue_name, "the name of the queue", NAME_LENGTH),
        message_id,
        check_text(message.actor_name, "the name of the actor", NAME_LENGTH),
        _payload(message, settings.max_payload_bytes),
        encode_object(headers, "headers", settings.max_payload_bytes),
        None if correlation_id is None else check_text(correlation_id, "correlation_id", CONTEXT_LENGTH),
        None if tenant_id is None else check_text(tenant_id, "tenant_id", CONTEXT_LENGTH),
        job_key(str(id) if key is None else key),
        settings.max_attempts,
        *UNORDERED,
        JOB,
        None if subject is None else check_text(subject, "subject", KEY_LENGTH),
        *due,
    )


def message_of(event: Event) -> Message:
    """Return the message of a claimed job. Raise DecodeError if this process's encoder can't read it."""
    return _decode(event.body.decode())


def message_of_row(row: OutboxEvent) -> Message:
    """Return the message of a job that was read with a query."""
    return _decode(json.dumps(row.payload, separators=(",", ":")))


def broker_headers(role: BrokerRole, description: str) -> dict[str, str]:
    """Return the headers of a message for a broker that the settings don't name; `broker_of` reads them."""
    return {_ROLE: role.value, _DESCRIPTION: description}


def broker_of(event: Event) -> tuple[BrokerRole, str | None]:
    """Return which broker the job is for, and, unless the settings name it, what it is (`describe_broker`)."""
    if not event.has_headers:
        return BrokerRole.SETTINGS, None
    return BrokerRole(event.headers.get(_ROLE, BrokerRole.SETTINGS)), event.headers.get(_DESCRIPTION)


def _decode(text: str) -> Message:
    if text.startswith(_OPAQUE_START):
        return dramatiq.Message.decode(base64.b64decode(json.loads(text)[OPAQUE_KEY]))
    return dramatiq.Message.decode(text.encode())


def _payload(message: Message, limit: int) -> str:
    """Return the message as the text of the column `payload`."""
    try:
        encoded = message.encode()
    except Exception as error:
        part = _part_that_cannot_be_encoded(message)
        problem = f"{part} of the message to {message.actor_name} can't be encoded: {describe(error)}."
        raise InvalidEvent(problem) from error
    text = encoded.decode() if _is_json(encoded) else json.dumps({OPAQUE_KEY: base64.b64encode(encoded).decode()})
    size = len(text) if text.isascii() else len(text.encode())
    if size > limit:
        raise InvalidEvent(
            f"The message to {message.actor_name} has {size} bytes; the limit is {limit} "
            "(OUTBOX_MAX_PAYLOAD_BYTES). Store the data elsewhere, and send its id."
        )
    return text


def _is_json(encoded: bytes) -> bool:
    """Return whether every JSON parser, PostgreSQL's among them, reads this as an object.

    Dramatiq's own encoder writes ASCII. It also writes NaN and Infinity, which are not JSON.
    """
    if type(get_encoder()) is JSONEncoder and b"NaN" not in encoded and b"Infinity" not in encoded:
        return True
    try:
        # Decoded first: json.loads would also accept bytes in UTF-16, or with a byte order mark.
        return isinstance(json.loads(encoded.decode(), parse_constant=_refuse_constant), dict)
    except (ValueError, RecursionError):
        return False


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _part_that_cannot_be_encoded(message: Message) -> str:
    """Return the first argument or option that can't be encoded, by name."""
    parts = [(f"args[{index}]", value) for index, value in enumerate(message.args)]
    parts += [(f"kwargs[{name!r}]", value) for name, value in message.kwargs.items()]
    parts += [(f"the option {name!r}", value) for name, value in message.options.items()]
    for name, value in parts:
        try:
            get_encoder().encode({"value": value})
        except Exception:
            return name
    return "A part"
