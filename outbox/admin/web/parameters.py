"""Filters as they stand in addresses and forms.

What can't be understood is refused, never ignored: it was to narrow what is shown or changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import urlencode
from uuid import UUID

from outbox.admin.web.http_errors import HTTPError
from outbox.operations.filters import Filter
from outbox.storage.models import STATUSES

# Longer than any column that it is compared with.
LONGEST = 500
MOST_IDS = 1_000
YEARS = range(1970, 3000)

TEXTS = {
    "type": "event_type",
    "tenant": "tenant_id",
    "destination": "destination",
    "error": "error",
    "key": "idempotency_key",
    "correlation": "correlation_id",
}
NAMES = ("status", "type", "aggregate", "tenant", "destination", "error", "key", "correlation", "since", "until")


def filter_of(given: Mapping[str, str]) -> Filter:
    """From an address's parameters; those that are empty narrow nothing."""
    values: dict[str, str | None] = {field: text(given, name) or None for name, field in TEXTS.items()}
    kind, colon, identity = text(given, "aggregate").partition(":")
    return Filter(
        **values,  # type: ignore[arg-type]  # all of these fields are texts
        status=_status(text(given, "status")),
        aggregate_type=kind or None,
        aggregate_id=identity if colon and identity else None,
        since=moment(given, "since"),
        until=moment(given, "until"),
    )


def parameters_of(given: Mapping[str, str]) -> dict[str, str]:
    """Only what makes the filter, to be handed on in links and forms."""
    return {name: value for name in NAMES if (value := text(given, name))}


def query_of(parameters: Mapping[str, str], **changes: str | None) -> str:
    """`?status=failed&type=order.placed`; None takes one away."""
    found = {name: value for name, value in {**parameters, **changes}.items() if value}
    return f"?{urlencode(found)}" if found else ""


def text(given: Mapping[str, str], name: str) -> str:
    value = given.get(name, "")
    if len(value) > LONGEST or "\x00" in value:
        raise _not_understood(name, f"a text of up to {LONGEST} characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _not_understood(name, "a text") from None
    return value.strip()


def moment(given: Mapping[str, str], name: str) -> datetime | None:
    """As a browser's form writes it, in UTC."""
    value = text(given, name)
    if not value:
        return None
    try:
        found = datetime.fromisoformat(value)
        found = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise _not_understood(name, "a time such as 2026-01-31T12:00, in UTC") from None
    if found.year not in YEARS:
        raise _not_understood(name, f"a time from {YEARS[0]} to {YEARS[-1]}")
    return found


def id_of(value: str) -> UUID:
    try:
        return UUID(value)
    except ValueError:
        raise HTTPError(404, "That is no event id", "An id looks like 0198c0de-0000-7000-8000-000000000000.") from None


def after_of(given: Mapping[str, str]) -> UUID | None:
    value = text(given, "after")
    return id_of(value) if value else None


def ids_of(given: list[str]) -> tuple[UUID, ...]:
    if len(given) > MOST_IDS:
        raise _not_understood("id", f"at most {MOST_IDS:,} ids; choose all that match a filter instead")
    return tuple(dict.fromkeys(id_of(value) for value in given))


def _status(value: str) -> str | None:
    if value and value not in STATUSES:
        raise _not_understood("status", f"one of {', '.join(STATUSES)}")
    return value or None


def _not_understood(name: str, expected: str) -> HTTPError:
    return HTTPError(400, "That can't be understood", f"“{name}” must be {expected}.")
