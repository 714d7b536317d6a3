"""`outbox retry`, `skip`, `fail`, `delete` and `replay`: the actions of operators on events."""

from __future__ import annotations

from typing import Any

import click

from outbox.cli import bulk, complete_names
from outbox.cli.bulk import bulk_options
from outbox.current_outbox import current
from outbox.operations import actions


@click.command(short_help="Deliver failed events again.")
@click.option("--waiting", is_flag=True, help="Instead of failed events, those that wait for their next attempt.")
@bulk_options
def retry(waiting: bool, **selection: Any) -> None:
    """Deliver failed events again. They are due at once, and their attempts are counted from 0.

    Destinations that have an event already don't get it again. With --waiting, events that wait for their next attempt
    are tried now, and their attempts are counted on.
    """
    bulk.run(actions.retry_now(current().dialect) if waiting else actions.RETRY, **selection)


@click.command(short_help="Let later events of a key go on without a failed one.")
@bulk_options
def skip(**selection: Any) -> None:
    """Let the later events of an ordering key go on without an event that has failed and that they wait behind.

    The event stays failed. Destinations that lack it get the later events without it. If other destinations still try
    it, it is skipped only where it has failed. outbox keys lists such events.
    """
    bulk.run(actions.SKIP, **selection)


@click.command(short_help="Mark waiting events as failed.")
@click.option("--reason", default="", help="Store this reason with the events.")
@bulk_options
def fail(reason: str, **selection: Any) -> None:
    """Mark events that wait for their first or next attempt as failed. They can be retried later.

    Events that a worker is delivering right now are not changed.
    """
    bulk.run(actions.fail_with(reason), **selection)


@click.command(short_help="Delete events that have ended.")
@bulk_options
def delete(**selection: Any) -> None:
    """Delete events that are delivered or have failed, before their retention is over.

    An event that still waits can't be deleted: fail it first. The idempotency key of a deleted event can be used again.
    """
    bulk.run(actions.DELETE, **selection)


@click.command(short_help="Redeliver events that were delivered.")
@click.option(
    "--to",
    metavar="NAME",
    shell_complete=complete_names.destinations,
    help="Deliver only to this destination.  [default: all that want the event]",
)
@bulk_options
def replay(to: str | None, **selection: Any) -> None:
    """Redeliver events that were delivered, with the same ids.

    Consumers that remember ids, as the inbox does, skip them. With --to, only events of types that this destination
    wants are replayed. For failed events, use outbox retry.
    """
    box = current()
    action = actions.REPLAY if to is None else actions.replay_to(box.dialect, box.registry, to)
    bulk.run(action, **selection)
