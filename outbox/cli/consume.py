"""`outbox consume events your.module`: handlers for what comes in a Redis stream."""

from __future__ import annotations

import logging
from typing import Any

import click

from outbox.application_modules import import_modules
from outbox.consumer.consumer import Consumer
from outbox.current_outbox import current, loaded_settings
from outbox.stop_signal import stop_on_signal
from outbox.telemetry import logs
from outbox.telemetry.process_reports import CONSUMER

logger = logging.getLogger("outbox")


@click.command(short_help="Call handlers for the entries of a Redis stream.")
@click.argument("stream")
@click.argument("modules", metavar="MODULE...", nargs=-1, required=True)
@click.option("--url", help="Where the stream is.  [default: the destination's, or OUTBOX_REDIS_URL]")
@click.option("--group", default="outbox", show_default=True, help="The group of consumers that share the entries.")
@click.option("--name", help="This consumer's name, unique in its group.  [default: host-pid-random]")
@click.option(
    "--batch", default=50, show_default=True, type=click.IntRange(min=1), help="Most entries fetched at a time."
)
@click.option(
    "--max-deliveries",
    default=5,
    show_default=True,
    type=click.IntRange(min=1),
    help="How often an entry is tried before it is parked.",
)
@click.option(
    "--idle-seconds",
    default=60.0,
    show_default=True,
    type=click.FloatRange(min=0.001),
    help="When an entry that failed, or whose consumer fell silent, comes again.",
)
@click.option("--dead-letter", help="The stream that entries are parked in.  [default: STREAM.dead]")
def consume(stream: str, modules: tuple[str, ...], **options: Any) -> None:
    """Call the handlers of MODULE for each entry of STREAM, once, in a transaction with the inbox.

    STREAM is the name of a RedisStream that MODULE registers, or the stream's own key. Start as many as you like: they
    share the entries. Stop it with Ctrl-C or SIGTERM; what was fetched is finished.
    """
    logs.set_up(loaded_settings().log_format, "%(asctime)s %(levelname)s %(message)s")
    import_modules(modules)
    consumer = Consumer(stream, **options)
    current().reporter.start(CONSUMER)
    consumer.run(stop_on_signal())
    current().reporter.stop()
    logger.info("stopped")
