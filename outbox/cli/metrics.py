"""`outbox metrics`: print the metrics for Prometheus, or write them to a file."""

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
    help="Write them to this file instead, atomically.",
)
@modules_option
def metrics(output: Path | None) -> None:
    """Print the counters of all processes and the state of the outbox, in the text format of Prometheus.

    For node_exporter's textfile collector: outbox metrics --output /var/lib/node_exporter/outbox.prom
    """
    from outbox.admin.metrics import exposition  # prometheus-client is an extra

    body, _ = exposition(current())
    if output is None:
        click.echo(body.decode(), nl=False)
        return
    # Write another file first, and rename it. The collector ignores that file, because its name does not end in .prom.
    unfinished = output.with_name(f".{output.name}.{os.getpid()}")
    unfinished.write_bytes(body)
    unfinished.replace(output)
