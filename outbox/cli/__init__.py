"""The command line: the `outbox` program and its subcommands, one module each.

This is the outermost layer: it may import all other layers, and none of them imports it. Commands that need Dramatiq,
APScheduler or Starlette import them when they run, so that `outbox --help` and `outbox emit` work without them.
"""

from __future__ import annotations

import sys

import click

from outbox.cli.actions import delete, fail, replay, retry
from outbox.cli.cleanup import cleanup
from outbox.cli.completion import completion
from outbox.cli.consume import consume
from outbox.cli.dashboard import dashboard
from outbox.cli.deliver import deliver
from outbox.cli.destinations import destinations, retire
from outbox.cli.doctor import doctor
from outbox.cli.emit import emit
from outbox.cli.init import init
from outbox.cli.list import list_
from outbox.cli.metrics import metrics
from outbox.cli.periodic import periodic
from outbox.cli.scheduler import scheduler
from outbox.cli.show import show
from outbox.cli.status import status
from outbox.cli.up import up
from outbox.cli.version import version_
from outbox.cli.worker import worker
from outbox.errors import OutboxError
from outbox.storage.connection_errors import CONNECTION_ERRORS
from outbox.version import __version__


@click.group()
@click.version_option(__version__, prog_name="outbox")
def cli() -> None:
    """A transactional outbox for Peewee and Dramatiq."""


cli.add_command(cleanup)
cli.add_command(completion)
cli.add_command(consume)
cli.add_command(dashboard)
cli.add_command(delete)
cli.add_command(deliver)
cli.add_command(destinations)
cli.add_command(doctor)
cli.add_command(emit)
cli.add_command(fail)
cli.add_command(init)
cli.add_command(list_)
cli.add_command(metrics)
cli.add_command(periodic)
cli.add_command(replay)
cli.add_command(retire)
cli.add_command(retry)
cli.add_command(scheduler)
cli.add_command(show)
cli.add_command(status)
cli.add_command(up)
cli.add_command(version_)
cli.add_command(worker)


def main() -> None:
    """Run the console script; report errors that the user can fix in one line, without a traceback."""
    try:
        cli()
    except OutboxError as error:
        click.echo(f"outbox: {error}", err=True)
        sys.exit(2)
    except CONNECTION_ERRORS as error:
        click.echo(f"outbox: can't use the database (OUTBOX_DATABASE_URL): {error}", err=True)
        sys.exit(2)
