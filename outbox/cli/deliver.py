"""`outbox deliver`: deliver the events that are due, in the foreground, and exit."""

from __future__ import annotations

import sys

import click

from outbox.application_modules import import_modules
from outbox.current_outbox import current, loaded_settings
from outbox.telemetry import logs

# The counters that the command prints.
COUNTED = ("delivered", "retried", "failed", "released", "put_off")


@click.command(short_help="Deliver the events that are due, and exit.")
@click.argument("modules", metavar="[MODULE...]", nargs=-1)
@click.option("--batch-size", type=click.IntRange(1, 10_000), help="Use this instead of OUTBOX_BATCH_SIZE.")
def deliver(modules: tuple[str, ...], batch_size: int | None) -> None:
    """Deliver the events that are due, in this process, and exit.

    They go to the handlers of MODULE and to the destinations that the settings declare. Workers may run at the same
    time: no event is delivered twice. The exit code is 1 if an event failed.
    """
    import dramatiq.broker  # other commands must not wait for its import

    from outbox.dramatiq.worker import may_have_jobs

    logs.set_up(loaded_settings().log_format)
    import_modules(modules)
    box = current()
    box.check_registered(modules, has_jobs=may_have_jobs(dramatiq.broker.global_broker))
    box.check_schema()
    size = box.settings.batch_size if batch_size is None else batch_size
    processed = size
    total = 0
    while processed >= size:
        processed = box.process_pending_events(size)["processed"]
        total += processed
    counts = ", ".join(f"{box.counters[name]:,} {name.replace('_', ' ')}" for name in COUNTED)
    click.echo(f"{total:,} claimed: {counts}")
    sys.exit(1 if box.counters["failed"] else 0)
