"""`outbox scheduler [MODULE...]`: run the scheduler process."""

from __future__ import annotations

import click


@click.command(short_help="Run the scheduler: sweeps, clean-ups and periodic jobs.")
@click.argument("modules", metavar="[MODULE...]", nargs=-1)
def scheduler(modules: tuple[str, ...]) -> None:
    """Run the scheduler. It asks the workers to deliver events that are due (sweep) and to delete old ones (clean-up).

    It also stores the runs of the periodic jobs that MODULE declares (@outbox.periodic), which needs the database.
    MODULE may also set your Dramatiq broker, or call outbox.configure; none is needed with OUTBOX_REDIS_URL. One
    scheduler is enough; a second one does no harm: each run is stored once. Stop it with Ctrl-C or SIGTERM.
    """
    from outbox.scheduler.process import main

    main(modules)
