"""`outbox consume STREAM MODULE...`: read a Redis stream or a queue of RabbitMQ, and call handlers for its entries."""

from __future__ import annotations

import logging
from typing import Any

import click

from outbox.application_modules import import_modules
from outbox.consumer.consumer import Consumer
from outbox.current_outbox import current, loaded_settings
from outbox.stop_signal import stop_on_signal
from outbox.telemetry import logs
from outbox.telemetry.heartbeat import heartbeat_of
from outbox.telemetry.process_reports import CONSUMER

logger = logging.getLogger(__name__)


@click.command(short_help="Read a stream or queue and call handlers.")
@click.argument("stream")
@click.argument("modules", metavar="MODULE...", nargs=-1, required=True)
@click.option(
    "--url",
    help="Connect to this Redis or RabbitMQ.  [default: the destination's, OUTBOX_CONSUME_URL or OUTBOX_REDIS_URL]",
)
@click.option(
    "--group",
    default="outbox",
    show_default=True,
    help="Join this group of a stream: its consumers share the entries.",
)
@click.option("--name", help="Name this consumer; unique in its group.  [default: host-pid-random]")
@click.option(
    "--batch",
    default=50,
    show_default=True,
    metavar="N",
    type=click.IntRange(min=1),
    help="Fetch at most N entries at a time.",
)
@click.option(
    "--max-deliveries",
    default=5,
    show_default=True,
    type=click.IntRange(min=1),
    help="Try an entry this many times; then move it to the dead-letter stream or queue.",
)
@click.option(
    "--idle-seconds",
    default=60.0,
    show_default=True,
    type=click.FloatRange(min=0.001),
    help="Try an entry again after this time, if it failed or (in a stream) its consumer stopped responding.",
)
@click.option("--dead-letter", help="Move entries that keep failing to this stream or queue.  [default: STREAM.dead]")
def consume(stream: str, modules: tuple[str, ...], **options: Any) -> None:
    """Call the handlers of MODULE for each entry of STREAM, once, in one transaction with the inbox.

    STREAM is the name of a RedisStream that MODULE registers, or the key of the stream in Redis. With the URL of a
    RabbitMQ (amqp://...) it is the name of a queue. You can run several consumers: they share the entries. Stop it with
    Ctrl-C or SIGTERM; it finishes the entries that it has read.
    """
    logs.set_up(loaded_settings().log_format)
    import_modules(modules)
    consumer = Consumer(stream, **options)
    current().reporter.start(CONSUMER)
    heartbeat = heartbeat_of(CONSUMER, loaded_settings())
    heartbeat.start()
    consumer.run(stop_on_signal())
    current().reporter.stop()
    heartbeat.stop()
    logger.info("stopped")
