"""Options that several commands share."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import click

from outbox.application_modules import import_modules
from outbox.operations.filters import Filter
from outbox.storage.models import STATUSES

F = TypeVar("F", bound=Callable[..., Any])

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
LONGEST_AGE = timedelta(days=36_500)


def age(value: str) -> timedelta:
    """`90s`, `15m`, `2h`, `7d`, `1w`"""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*([smhdw])", value.strip())
    if found is None:
        raise click.BadParameter(f"{value!r} is no age: write 90s, 15m, 2h, 7d or 1w.")
    try:
        return min(timedelta(**{UNITS[found[2]]: float(found[1])}), LONGEST_AGE)
    except OverflowError:
        return LONGEST_AGE


def moment(value: str) -> datetime:
    """`2026-01-31`, `2026-01-31T12:00`, with or without a zone (UTC by default)"""
    try:
        found = datetime.fromisoformat(value.strip())
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{value!r} is no time: write 2026-01-31, or 2026-01-31T12:00 (in UTC).") from None


def event_id(value: str) -> UUID:
    try:
        return UUID(value.strip())
    except ValueError:
        raise click.BadParameter(f"{value!r} is no event id, such as 0198c0de-0000-7000-8000-000000000000.") from None


def modules_option(command: F) -> F:
    """`-m your.module`, for an application that configures its database in a module of its own."""

    @functools.wraps(command)
    def call(*args: Any, modules: tuple[str, ...], **kwargs: Any) -> Any:
        import_modules(modules)
        return command(*args, **kwargs)

    option = click.option(
        "-m",
        "--module",
        "modules",
        multiple=True,
        metavar="MODULE",
        help="Import this first: the module that configures the database, or holds the handlers.",
    )
    return option(call)  # type: ignore[return-value]  # what click makes of it is called by click alone


json_option = click.option("--json", "as_json", is_flag=True, help="For programs: JSON instead of a table.")


def filter_options(command: F) -> F:
    """The options that choose events; the command gets a Filter called `which`."""

    @functools.wraps(command)
    def call(*args: Any, **kwargs: Any) -> Any:
        values = {name: kwargs.pop(name) for name in NAMES}
        return command(*args, which=_filter(**values), **kwargs)

    decorated: Any = call
    for option in reversed(FILTERS):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


NAMES = (
    "status",
    "event_type",
    "aggregate",
    "tenant",
    "destination",
    "error",
    "key",
    "correlation",
    "older_than",
    "newer_than",
    "since",
    "until",
)
FILTERS = (
    click.option("--status", type=click.Choice(STATUSES), help="In this state."),
    click.option("--type", "event_type", metavar="TYPE", help="Of this event type."),
    click.option("--aggregate", metavar="TYPE[:ID]", help="About this thing: Order:7, or all of a type: Order."),
    click.option("--tenant", metavar="ID", help="Of this tenant."),
    click.option("--destination", metavar="NAME", help="That this destination has not got: failed, or waiting."),
    click.option("--error", metavar="TEXT", help="Whose error contains this."),
    click.option("--key", metavar="KEY", help="With this idempotency key."),
    click.option("--correlation", metavar="ID", help="With this correlation id."),
    click.option("--older-than", type=age, metavar="AGE", help="Emitted longer ago than 90s, 15m, 2h, 7d."),
    click.option("--newer-than", type=age, metavar="AGE", help="Emitted since then."),
    click.option("--since", type=moment, metavar="TIME", help="Emitted at that time or later (UTC)."),
    click.option("--until", type=moment, metavar="TIME", help="Emitted before that time."),
)


def _filter(
    *,
    status: str | None,
    event_type: str | None,
    aggregate: str | None,
    tenant: str | None,
    destination: str | None,
    error: str | None,
    key: str | None,
    correlation: str | None,
    older_than: timedelta | None,
    newer_than: timedelta | None,
    since: datetime | None,
    until: datetime | None,
) -> Filter:
    for one, other in (
        (("--since", since), ("--newer-than", newer_than)),
        (("--until", until), ("--older-than", older_than)),
    ):
        if one[1] is not None and other[1] is not None:
            raise click.UsageError(f"{one[0]} and {other[0]} say the same in two ways: give one of them.")
    now = datetime.now(UTC)
    kind, found, identity = (aggregate or "").partition(":")
    return Filter(
        status=status,
        event_type=event_type,
        aggregate_type=kind or None,
        aggregate_id=identity if found else None,
        idempotency_key=key,
        correlation_id=correlation,
        tenant_id=tenant,
        destination=destination,
        error=error,
        since=since if newer_than is None else now - newer_than,
        until=until if older_than is None else now - older_than,
    )
