"""`outbox scheduler [MODULE...]`: the scheduler process."""

from __future__ import annotations

import click


@click.command(short_help="Run the scheduler: sweeps and clean-ups.")
@click.argument("modules", metavar="[MODULE...]", nargs=-1)
def scheduler(modules: tuple[str, ...]) -> None:
    """Run the scheduler: it asks workers to deliver what has come due, and to delete what is old.

    Name the MODULE that sets your Dramatiq broker, or that calls outbox.configure; with OUTBOX_REDIS_URL it needs none.
    One is enough, two do no harm. Stop it with Ctrl-C or SIGTERM.
    """
    from outbox.scheduler.process import main

    main(modules)
