"""`outbox retry`, `fail`, `delete`, `replay`: what an operator does to events."""

from __future__ import annotations

from typing import Any

import click

from outbox.cli import bulk
from outbox.cli.bulk import bulk_options
from outbox.current_outbox import current
from outbox.operations import actions


@click.command(short_help="Put failed events back.")
@bulk_options
def retry(**choice: Any) -> None:
    """Put failed events back: they are due now, and their attempts start again from 0.

    Destinations that have an event already don't get it again.
    """
    bulk.run(actions.RETRY, **choice)


@click.command(short_help="Give up on events that are waiting.")
@click.option("--reason", default="", help="Kept with the events.")
@bulk_options
def fail(reason: str, **choice: Any) -> None:
    """Give up on events that wait for their first or next attempt: they are failed, and can be retried later.

    What a worker is delivering right now is left alone.
    """
    bulk.run(actions.fail_with(reason), **choice)


@click.command(short_help="Delete events that have ended.")
@bulk_options
def delete(**choice: Any) -> None:
    """Delete events that were delivered or have failed, before their retention is over.

    An event that is still to be delivered can't be deleted: fail it first. With an event its idempotency key goes, too,
    and may be emitted again.
    """
    bulk.run(actions.DELETE, **choice)


@click.command(short_help="Deliver events again.")
@click.option("--to", metavar="NAME", help="To this destination alone.  [default: all that want it]")
@bulk_options
def replay(to: str | None, **choice: Any) -> None:
    """Deliver again what was delivered, with the same ids: consumers that go by them, as the inbox does, skip it.

    With --to, only events that this destination wants; workers deliver them as they get to them.

    Failed events are retried instead: outbox retry.
    """
    box = current()
    action = actions.REPLAY if to is None else actions.replay_to(box.dialect, box.registry, to)
    bulk.run(action, **choice)
