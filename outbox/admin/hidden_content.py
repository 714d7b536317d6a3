"""Hide the parts of errors that quote events from users who may not see payloads.

Handlers and receivers put values of events into their errors. So an error is compared with the payload and the headers
of its event, as the errors of webhooks are before they are stored. If they can't be read, the error is not shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from uuid import UUID

import peewee

from outbox.admin.blocked_keys import BlockedKeys
from outbox.admin.event_state import DestinationState
from outbox.admin.failures import READ_LENGTH, Failure, cause_of
from outbox.admin.overview import Overview
from outbox.admin.readable_row import readable_row
from outbox.encryption.cipher import Cipher
from outbox.events.job_row import content_of
from outbox.storage import progress
from outbox.storage.dialect import Dialect
from outbox.storage.models import EVENT, OutboxEvent
from outbox.storage.operator_models import Attempt
from outbox.webhooks.redaction import hide_values, texts_in

NOT_SHOWN = "not shown without the permission “payloads”"
# The errors of events with more content than this are not shown in lists: a page of fifty would take too long. Ten
# thousand characters take a millisecond.
LONGEST = 20_000

# The texts and numbers in an event; None if they are not known.
Values = list[str] | None


def without_content(error: str | None, values: Values) -> str | None:
    """Return an error without the values of its event."""
    if not error:
        return error
    return NOT_SHOWN if values is None else hide_values(error, values, is_cut=error.endswith("…"))


def values_of(event: OutboxEvent, cipher: Cipher | None) -> Values:
    """Return the texts and numbers in an event, or in the arguments and options of a job."""
    row, problem = readable_row(event, cipher)
    if problem is not None:
        return None
    content = row.payload if row.kind == EVENT else content_of(row.payload)
    return None if content is None and row.payload else list(texts_in([_as_json(content), row.headers]))


def _as_json(content: object) -> object:
    return list(content) if isinstance(content, tuple) else content


def hide_in_rows(dialect: Dialect, cipher: Cipher | None, events: Iterable[OutboxEvent]) -> None:
    """Hide the values of events in their own errors. The rows may lack the columns of the content."""
    with_error = [event for event in events if event.error_message]
    values = _read_values(dialect, cipher, (event.id for event in with_error))
    for event in with_error:
        event.error_message = without_content(event.error_message, values.get(event.id))


def hide_in_event(
    event: OutboxEvent, values: Values, states: Iterable[DestinationState], attempts: Iterable[Attempt]
) -> list[DestinationState]:
    """Hide the values of one event in its error and in its attempts; return the states without them."""
    event.error_message = without_content(event.error_message, values)
    for attempt in attempts:
        attempt.error = without_content(attempt.error, values)
    return [replace(state, error=without_content(state.error, values)) for state in states]


def hide_in_attempts(dialect: Dialect, cipher: Cipher | None, attempts: Iterable[Attempt]) -> None:
    """Hide the values of events in the errors of attempts, which may be those of several events."""
    found = list(attempts)
    values = _read_values(dialect, cipher, {attempt.event_id for attempt in found})
    for attempt in found:
        attempt.error = without_content(attempt.error, values.get(attempt.event_id))


def hide_in_overview(dialect: Dialect, cipher: Cipher | None, view: Overview) -> Overview:
    """Return the overview without the values of events in its errors."""
    hide_in_blocked_keys(dialect, cipher, view.blocked)
    ids = [failure.example for failure in view.failures if failure.example is not None]
    rows = {row.id: row for row in _read(dialect, ids)}
    return replace(view, failures=[_without_example(failure, rows, cipher) for failure in view.failures])


def hide_in_blocked_keys(dialect: Dialect, cipher: Cipher | None, found: BlockedKeys) -> None:
    """Hide the values of the events that hold keys back."""
    hide_in_rows(dialect, cipher, [each.head for each in found.longest if each.head is not None])


def _without_example(failure: Failure, rows: Mapping[UUID, OutboxEvent], cipher: Cipher | None) -> Failure:
    """Return a cause without the values of one of its events. The errors of the others say the same."""
    row = None if failure.example is None else rows.get(failure.example)
    if row is None or not failure.error:
        return failure if not failure.error else replace(failure, error=NOT_SHOWN)
    entry = progress.failed(row.progress).get(failure.destination)
    error = without_content(row.error_message if entry is None else entry.error, values_of(row, cipher))
    return replace(failure, error=cause_of((error or "")[:READ_LENGTH]))


def _read_values(dialect: Dialect, cipher: Cipher | None, ids: Iterable[UUID]) -> dict[UUID, Values]:
    return {row.id: values_of(row, cipher) for row in _read(dialect, list(ids))}


def _read(dialect: Dialect, ids: list[UUID]) -> list[OutboxEvent]:
    """Return the rows with their content, without those that have too much of it."""
    if not ids:
        return []
    event = OutboxEvent
    length = peewee.fn.LENGTH(event.payload.cast("text")) + peewee.fn.LENGTH(event.headers.cast("text"))
    columns = event.id, event.kind, event.payload, event.headers, event.progress, event.error_message
    with dialect.connection():
        return dialect.select(event.select(*columns).where(event.id.in_(ids), length <= LONGEST))
