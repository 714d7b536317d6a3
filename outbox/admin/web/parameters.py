"""Parse the parameters of query strings and forms (the filter for events, ids and times), and write query strings.

An invalid parameter is an error (400). If it were ignored, more events would be shown or changed than the operator
asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from urllib.parse import urlencode
from uuid import UUID

from outbox.admin.history import ACTOR, DESTINATION, EVERYTHING, HOUR, RANGES, TYPE, Range, Scope
from outbox.admin.web.http_errors import HTTPError
from outbox.operations.filters import Filter
from outbox.storage.models import JOB, KINDS, STATUSES

# No column that is compared with a text is longer.
MAX_LENGTH = 500
MAX_IDS = 1_000
YEARS = range(1970, 3000)

# Parameters whose value is a text, and the fields of Filter that they set.
TEXTS = {
    "type": "event_type",
    "actor": "actor",
    "tenant": "tenant_id",
    "destination": "destination",
    "error": "error",
    "key": "idempotency_key",
    "ordering_key": "ordering_key",
    "correlation": "correlation_id",
}
# All parameters of a filter.
NAMES = (
    "status", "kind", "type", "actor", "aggregate", "tenant", "destination", "error", "key", "ordering_key",
    "correlation", "since", "until", "ended_since", "ended_until",
)  # fmt: skip


def parse_filter(given: Mapping[str, str]) -> Filter:
    """Return the filter that these parameters describe. Empty parameters are ignored."""
    values: dict[str, str | None] = {field: parse_text(given, name) or None for name, field in TEXTS.items()}
    aggregate_type, colon, aggregate_id = parse_text(given, "aggregate").partition(":")
    kind = parse_choice(given, "kind", KINDS)
    if values["actor"] is not None and (values["event_type"] is not None or kind not in (None, JOB)):
        raise _invalid(
            "actor", "given without a type, and without a kind or with the kind job: only jobs have an actor"
        )
    if values["event_type"] is not None and kind == JOB:
        raise _invalid("type", "left empty for jobs, which have an actor instead")
    return Filter(
        **values,  # type: ignore[arg-type]  # all of these fields are texts
        kind=kind,
        status=parse_choice(given, "status", STATUSES),
        aggregate_type=aggregate_type or None,
        aggregate_id=aggregate_id if colon and aggregate_id else None,
        since=parse_time(given, "since"),
        until=parse_time(given, "until"),
        ended_since=parse_time(given, "ended_since"),
        ended_until=parse_time(given, "ended_until"),
    )


def filter_parameters(given: Mapping[str, str]) -> dict[str, str]:
    """Return only the parameters of the filter, for links and forms that keep the filter."""
    return {name: value for name in NAMES if (value := parse_text(given, name))}


def query_string(parameters: Mapping[str, str], **changes: str | None) -> str:
    """Return, for example, `?status=failed&type=order.placed`, with `changes` applied; None removes a parameter."""
    values = {name: value for name, value in {**parameters, **changes}.items() if value}
    return f"?{urlencode(values)}" if values else ""


def parse_text(given: Mapping[str, str], name: str) -> str:
    """Return a parameter without surrounding whitespace; "" if it is missing."""
    value = given.get(name, "")
    if len(value) > MAX_LENGTH or "\x00" in value:
        raise _invalid(name, f"a text of up to {MAX_LENGTH} characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _invalid(name, "a text") from None
    return value.strip()


def parse_time(given: Mapping[str, str], name: str) -> datetime | None:
    """Return a time in the format of a browser's form. It is in UTC unless it has a time zone."""
    value = parse_text(given, name)
    if not value:
        return None
    try:
        time = datetime.fromisoformat(value)
        time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise _invalid(name, "a time such as 2026-01-31T12:00, in UTC") from None
    if time.year not in YEARS:
        raise _invalid(name, f"a time from {YEARS[0]} to {YEARS[-1]}")
    return time


def parse_range(given: Mapping[str, str]) -> Range:
    """Return the range of the charts; the last hour if none is given."""
    name = parse_choice(given, "range", tuple(RANGES))
    return HOUR if name is None else RANGES[name]


def parse_scope(given: Mapping[str, str]) -> Scope:
    """Return what the charts are of, such as `type:order.placed`; everything if nothing is given."""
    value = parse_text(given, "of")
    if not value:
        return EVERYTHING
    kind, _, name = value.partition(":")
    if kind not in (TYPE, DESTINATION, ACTOR) or not name:
        raise _invalid("of", f"{TYPE}:NAME, {DESTINATION}:NAME or {ACTOR}:NAME")
    return Scope(kind, name)


def parse_id(value: str) -> UUID:
    """Return the id of an event; raise HTTPError (404) for anything else."""
    try:
        return UUID(value)
    except ValueError:
        raise HTTPError(404, "Not an event id", "An id looks like 0198c0de-0000-7000-8000-000000000000.") from None


def parse_after(given: Mapping[str, str]) -> UUID | None:
    """Return the id after which the page of the list begins, or None for the first page."""
    value = parse_text(given, "after")
    return parse_id(value) if value else None


def parse_ids(given: list[str]) -> tuple[UUID, ...]:
    """Return the ids without duplicates, in order."""
    if len(given) > MAX_IDS:
        raise _invalid("id", f"at most {MAX_IDS:,} ids; choose all that match a filter instead")
    return tuple(dict.fromkeys(parse_id(value) for value in given))


def parse_choice(given: Mapping[str, str], name: str, choices: Sequence[str]) -> str | None:
    """Return a parameter that must be one of the choices; None if it is missing."""
    value = parse_text(given, name)
    if value and value not in choices:
        raise _invalid(name, f"one of {', '.join(choices)}")
    return value or None


def _invalid(name: str, expected: str) -> HTTPError:
    return HTTPError(400, "Invalid parameter", f"“{name}” must be {expected}.")
