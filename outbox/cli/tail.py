"""`outbox tail`: print events as they are emitted, delivered, retried and fail."""

from __future__ import annotations

import time
from collections.abc import Iterator
from uuid import UUID

import click

from outbox.admin import queries
from outbox.cli.event_id import short_id
from outbox.cli.list import COLOURS
from outbox.cli.options import filter_options, modules_option
from outbox.cli.output import is_terminal, one_line
from outbox.core import Outbox
from outbox.current_outbox import current
from outbox.operations.filters import Filter
from outbox.storage.models import OutboxEvent

# How many of the newest events are read again, to find changes.
LOOKED_AT = 1_000

# The printed state of an event: its status, its attempts and its error.
State = tuple[str, int, str | None]


@click.command(short_help="Print events as they are emitted and delivered.")
@filter_options
@click.option("-f", "--follow", is_flag=True, help="Go on until Ctrl-C.")
@click.option("-n", "--lines", type=click.IntRange(0, LOOKED_AT), default=10, show_default=True, help="So many first.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="With --follow, look every SECONDS seconds.",
)
@modules_option
def tail(filter: Filter, follow: bool, lines: int, interval: float) -> None:
    """Print the newest events; with --follow, also print new events, and every change of their state.

    Each time it reads the newest 1,000 events that match. If more are emitted at once, the others are not printed.
    """
    box = current()
    box.check_schema()
    known: dict[UUID, State] = {}
    newest = _look(box, filter, known)
    for event in newest[len(newest) - lines :] if lines else []:
        _echo(event)
    try:
        while follow:
            time.sleep(interval)
            for event in _look(box, filter, known):
                _echo(event)
    except KeyboardInterrupt:
        pass


def _look(box: Outbox, filter: Filter, known: dict[UUID, State]) -> list[OutboxEvent]:
    """Return the events that are new or have changed since the last look, the oldest first; remember them."""
    page = queries.page(box.dialect, filter, size=LOOKED_AT)
    found = {event.id: _state(event) for event in page.events}
    changed = [event for event in reversed(page.events) if known.get(event.id) != found[event.id]]
    known.clear()
    known.update(found)
    return changed


def _state(event: OutboxEvent) -> State:
    return event.status, event.attempts, event.error_message


def _echo(event: OutboxEvent) -> None:
    click.echo("  ".join(_cells(event)))


def _cells(event: OutboxEvent) -> Iterator[str]:
    yield f"{event.updated_at:%H:%M:%S}"
    yield short_id(event.id) if is_terminal() else str(event.id)
    yield click.style(f"{event.status:9}", fg=COLOURS.get(event.status))
    yield one_line(event.event_type)
    yield one_line(f"{event.aggregate_type}:{event.aggregate_id}")
    if event.error_message is not None:
        yield one_line(event.error_message)
