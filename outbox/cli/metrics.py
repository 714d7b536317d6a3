"""`outbox metrics`: what Prometheus scrapes, printed."""

from __future__ import annotations

import os
from pathlib import Path

import click

from outbox.cli.options import modules_option
from outbox.current_outbox import current


@click.command(short_help="Print metrics for Prometheus.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write them to a file instead, which is never seen half written.",
)
@modules_option
def metrics(output: Path | None) -> None:
    """Print what all processes have counted and how things stand, as Prometheus reads it.

    For node_exporter's textfile collector: outbox metrics --output /var/lib/node_exporter/outbox.prom
    """
    from outbox.admin.metrics import exposition  # prometheus-client is an extra

    body, _ = exposition(current())
    if output is None:
        click.echo(body.decode(), nl=False)
        return
    # Its name does not end in .prom: the collector passes it by.
    unfinished = output.with_name(f".{output.name}.{os.getpid()}")
    unfinished.write_bytes(body)
    unfinished.replace(output)
