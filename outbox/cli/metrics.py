"""`outbox metrics`: print the metrics for Prometheus, or write them to a file."""

from __future__ import annotations

import os
from pathlib import Path

import click

from outbox.cli.options import modules_option
from outbox.current_outbox import current
from outbox.text import printable


@click.command(short_help="Print metrics for Prometheus.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write them to this file instead, atomically.",
)
@modules_option
def metrics(output: Path | None) -> None:
    """Print the counters of all processes and the state of the outbox, in the text format of Prometheus.

    For node_exporter's textfile collector: outbox metrics --output /var/lib/node_exporter/outbox.prom

    If the database can't be read, it prints or writes outbox_up 0, and the exit code is 2.
    """
    from outbox.admin.metrics import Collector, expose  # prometheus-client is an extra

    collector = Collector(current())
    body = expose(collector)
    if output is None:
        click.echo("\n".join(map(printable, body.decode().split("\n"))), nl=False)
    else:
        # Write another file first, and rename it. The collector ignores that file: its name does not end in .prom.
        unfinished = output.with_name(f".{output.name}.{os.getpid()}")
        unfinished.write_bytes(body)
        unfinished.replace(output)
    if collector.error is not None:
        raise collector.error
