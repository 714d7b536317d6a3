"""Options that several commands share: the filters for events, `--json` and `-m MODULE`.

The functions `parse_…` convert the values of options and arguments.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import click

from outbox.application_modules import import_modules
from outbox.cli import complete_names
from outbox.current_outbox import selected
from outbox.operations.filters import Filter
from outbox.storage.models import JOB, KINDS, STATUSES

F = TypeVar("F", bound=Callable[..., Any])

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
LONGEST_AGE = timedelta(days=36_500)


def parse_age(value: str) -> timedelta:
    """Parse `90s`, `15m`, `2h`, `7d` or `1w`. A longer time than LONGEST_AGE becomes LONGEST_AGE."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*([smhdw])", value.strip())
    if match is None:
        raise click.BadParameter(f"{value!r} is not a valid age: write 90s, 15m, 2h, 7d or 1w.")
    try:
        return min(timedelta(**{UNITS[match[2]]: float(match[1])}), LONGEST_AGE)
    except OverflowError:
        return LONGEST_AGE


def parse_timestamp(value: str) -> datetime:
    """Parse `2026-01-31` or `2026-01-31T12:00`, with or without a time zone; UTC by default."""
    try:
        time = datetime.fromisoformat(value.strip())
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{value!r} is not a valid time: write 2026-01-31, or 2026-01-31T12:00 (in UTC)."
        ) from None


def parse_event_id(value: str) -> UUID:
    """Parse a whole id."""
    try:
        return UUID(value.strip())
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is not an event id, such as 0198c0de-0000-7000-8000-000000000000."
        ) from None


def parse_moment(value: str) -> datetime:
    """Parse a time as `parse_timestamp` does, or how long ago it was, as `parse_age` does: `2h`."""
    if re.fullmatch(r"[\d.]+\s*[a-z]", value.strip()):
        return datetime.now(UTC) - parse_age(value)
    return parse_timestamp(value)


def modules_option(command: F) -> F:
    """Add `-m MODULE`: the modules are imported before the command runs. They may call outbox.configure."""

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
        help="Import this module first: it configures the database, or registers handlers.",
    )
    # `call` has one parameter more than `command`. That does not matter, because only click calls it.
    return option(call)  # type: ignore[return-value]


def add_outbox_option(command: click.Command) -> None:
    """Add `--outbox NAME` to a command, or to all commands of a group."""
    if isinstance(command, click.Group):
        for each in command.commands.values():
            add_outbox_option(each)
        return
    command.params.append(
        click.Option(
            ["--outbox"],
            metavar="NAME",
            expose_value=False,
            callback=_select_outbox,
            help="Work on the outbox that outbox.configure(name=NAME) has set up.",
        )
    )


def _select_outbox(context: click.Context, parameter: click.Parameter, name: str | None) -> None:
    context.with_resource(selected(name))


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


def filter_options(command: F) -> F:
    """Add the options that select events. The command gets them as one argument, the Filter `filter`."""

    @functools.wraps(command)
    def call(*args: Any, **kwargs: Any) -> Any:
        values = {name: kwargs.pop(name) for name in FILTER_NAMES}
        return command(*args, filter=_make_filter(**values), **kwargs)

    decorated: Any = call
    for option in reversed(FILTER_OPTIONS):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


# The parameters of `_make_filter`, one for each of FILTER_OPTIONS.
FILTER_NAMES = (
    "status",
    "kind",
    "event_type",
    "actor",
    "aggregate",
    "tenant",
    "subject",
    "destination",
    "error",
    "key",
    "ordering_key",
    "correlation",
    "older_than",
    "newer_than",
    "since",
    "until",
)
FILTER_OPTIONS = (
    click.option("--status", type=click.Choice(STATUSES), help="Only events with this status."),
    click.option("--kind", type=click.Choice(KINDS), help="Only rows of this kind.  [default: all kinds]"),
    click.option(
        "--type",
        "event_type",
        metavar="TYPE",
        shell_complete=complete_names.event_types,
        help="Only events of this type.",
    ),
    click.option("--actor", metavar="NAME", shell_complete=complete_names.actors, help="Only jobs of this actor."),
    click.option(
        "--aggregate",
        metavar="TYPE[:ID]",
        help="Only events of this aggregate, Order:7, or of this aggregate type, Order.",
    ),
    click.option("--tenant", metavar="ID", help="Only events of this tenant."),
    click.option("--subject", metavar="NAME", help="Only events about this subject."),
    click.option(
        "--destination",
        metavar="NAME",
        shell_complete=complete_names.destinations,
        help="Only events that failed at this destination, or wait for their next attempt there.",
    ),
    click.option("--error", metavar="TEXT", help="Only events whose error contains this text."),
    click.option("--key", metavar="KEY", help="Only events with this idempotency key."),
    click.option("--ordering-key", metavar="KEY", help="Only events with this ordering key."),
    click.option("--correlation", metavar="ID", help="Only events with this correlation id."),
    click.option(
        "--older-than", type=parse_age, metavar="AGE", help="Only events emitted longer ago: 90s, 15m, 2h, 7d."
    ),
    click.option("--newer-than", type=parse_age, metavar="AGE", help="Only events emitted within this time."),
    click.option(
        "--since",
        type=parse_moment,
        metavar="TIME",
        help="Only events emitted since this time (UTC), or since 2h ago: 2h.",
    ),
    click.option(
        "--until",
        type=parse_moment,
        metavar="TIME",
        help="Only events emitted before this time (UTC), or longer ago: 2h.",
    ),
)


def _make_filter(
    *,
    status: str | None,
    kind: str | None,
    event_type: str | None,
    actor: str | None,
    aggregate: str | None,
    tenant: str | None,
    subject: str | None,
    destination: str | None,
    error: str | None,
    key: str | None,
    ordering_key: str | None,
    correlation: str | None,
    older_than: timedelta | None,
    newer_than: timedelta | None,
    since: datetime | None,
    until: datetime | None,
) -> Filter:
    for one, other in (
        (("--since", since), ("--newer-than", newer_than)),
        (("--until", until), ("--older-than", older_than)),
        (("--type", event_type), ("--actor", actor)),
    ):
        if one[1] is not None and other[1] is not None:
            raise click.UsageError(f"{one[0]} and {other[0]} exclude each other: give one of them.")
    if actor is not None and kind not in (None, JOB):
        raise click.UsageError(f"--actor selects jobs: it can't be given with --kind {kind}.")
    if event_type is not None and kind == JOB:
        raise click.UsageError("Jobs have no type: use --actor instead of --type.")
    now = datetime.now(UTC)
    aggregate_type, colon, aggregate_id = (aggregate or "").partition(":")
    return Filter(
        status=status,
        kind=kind,
        event_type=event_type,
        actor=actor,
        aggregate_type=aggregate_type or None,
        aggregate_id=aggregate_id if colon else None,
        idempotency_key=key,
        ordering_key=ordering_key,
        correlation_id=correlation,
        tenant_id=tenant,
        subject=subject,
        destination=destination,
        error=error,
        since=since if newer_than is None else now - newer_than,
        until=until if older_than is None else now - older_than,
    )
