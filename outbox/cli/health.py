"""`outbox health`: a probe of the workers and schedulers on this host, for Kubernetes and the like."""

from __future__ import annotations

import socket
import sys
from datetime import timedelta
from pathlib import Path

import click

from outbox.admin.durations import format_seconds
from outbox.admin.processes import is_silent, processes
from outbox.cli.options import modules_option
from outbox.cli.output import one_line
from outbox.core import Outbox
from outbox.current_outbox import current, loaded_settings
from outbox.errors import OutboxError
from outbox.storage.connection_errors import CONNECTION_ERRORS
from outbox.telemetry.heartbeat import MAX_AGE_SECONDS, Beat, read_beats

# How long one statement of the probe may take.
STATEMENT_SECONDS = 3.0
UNHEALTHY = 1


@click.command(short_help="Probe the workers and schedulers on this host.")
@click.option("--live", "only_live", is_flag=True, help="Are they alive? It asks neither the database nor the broker.")
@click.option("--ready", is_flag=True, help="Are they alive, and can they work?  [default]")
@click.option(
    "--max-age",
    type=click.FloatRange(min=0, min_open=True),
    default=MAX_AGE_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="A process whose last heartbeat is older is not alive.",
)
@modules_option
def health(only_live: bool, ready: bool, max_age: float) -> None:
    """Check the workers, schedulers and consumers that run on this host, in this container: exit code 0 or 1.

    --live is for a liveness probe: each of them has written its heartbeat, a file, within 30 seconds. A database or a
    broker that is down does not matter, since a restart would not help.

    --ready is for a readiness probe: also, the database can be read, has the tables, and each process has reported to
    it.
    """
    if only_live and ready:
        raise click.UsageError("Give --live or --ready, not both.")
    directory = loaded_settings().health_directory
    beats = read_beats(None if directory is None else Path(directory))
    reasons = _not_alive(beats, max_age)
    if not reasons and not only_live:
        reasons = _not_ready(beats)
    if reasons:
        for reason in reasons:
            click.echo(one_line(f"not {'live' if only_live else 'ready'}: {reason}"))
        sys.exit(UNHEALTHY)
    click.echo(f"{'live' if only_live else 'ready'}: {', '.join(f'{each.kind} {each.pid}' for each in beats)}")


def _not_alive(beats: list[Beat], max_age: float) -> list[str]:
    if not beats:
        return ["no worker, scheduler or consumer of this user runs here"]
    return [
        f"{each.kind} {each.pid} has not written its heartbeat for {format_seconds(each.age_seconds)}"
        for each in beats
        if each.age_seconds > max_age
    ]


def _not_ready(beats: list[Beat]) -> list[str]:
    try:
        box = current()
        with box.dialect.bounded(STATEMENT_SECONDS):
            box.check_schema()
            return [] if box.settings.publish_seconds == 0 else _not_reported(box, beats)
    except OutboxError as error:
        return [str(error)]
    except CONNECTION_ERRORS as error:
        return [f"the database can't be used: {error}"]


def _not_reported(box: Outbox, beats: list[Beat]) -> list[str]:
    """Return which processes have not reported to the database, or report that they can't deliver."""
    now = box.dialect.now()
    here = {each.pid: each for each in processes(box.dialect) if each.host == socket.gethostname()[:255]}
    reasons = []
    for beat in beats:
        process = here.get(beat.pid)
        if process is None or is_silent(process, now):
            since = "" if process is None else f" for {format_seconds((now - process.seen_at) / timedelta(seconds=1))}"
            reasons.append(f"{beat.kind} {beat.pid} has not reported to the database{since}")
        elif not process.details.get("ready", True):
            reasons.append(f"{beat.kind} {beat.pid} has calls that do not return, and delivers nothing")
    return reasons
