"""The command line: the `outbox` program and its subcommands, one module each.

This is the outermost layer: it may import all other layers, and none of them imports it. Commands that need Dramatiq,
APScheduler or Starlette import them when they run, so that `outbox --help` and `outbox emit` work without them.
"""

from __future__ import annotations

import sys

import click

from outbox.admin.lock_waits import describe_lock_timeout
from outbox.cli.actions import delete, fail, replay, retry, skip
from outbox.cli.archive import archive
from outbox.cli.audit import audit
from outbox.cli.bulk_actions import bulk
from outbox.cli.cleanup import cleanup
from outbox.cli.command_groups import EXAMPLES, CommandGroups
from outbox.cli.compat import compat
from outbox.cli.completion import completion
from outbox.cli.consume import consume
from outbox.cli.control import drain, pause, recover, resume, throttle
from outbox.cli.dashboard import dashboard
from outbox.cli.deliver import deliver
from outbox.cli.destinations import destinations, retire
from outbox.cli.doctor import doctor
from outbox.cli.emit import emit
from outbox.cli.encryption_key import encryption_key
from outbox.cli.erase import erase
from outbox.cli.examples import add_examples
from outbox.cli.export import export
from outbox.cli.health import health
from outbox.cli.init import init
from outbox.cli.keys import keys
from outbox.cli.list import list_
from outbox.cli.metrics import metrics
from outbox.cli.options import add_outbox_option
from outbox.cli.periodic import periodic
from outbox.cli.prove import prove
from outbox.cli.reencrypt import reencrypt
from outbox.cli.scheduler import scheduler
from outbox.cli.schema import schema
from outbox.cli.show import show
from outbox.cli.status import status
from outbox.cli.streams import streams
from outbox.cli.tail import tail
from outbox.cli.up import up
from outbox.cli.version import version_
from outbox.cli.worker import worker
from outbox.current_outbox import current
from outbox.errors import OutboxError, as_sentence
from outbox.storage.connection_errors import CONNECTION_ERRORS, is_lock_timeout, is_statement_timeout
from outbox.text import visible_lines
from outbox.version import __version__


@click.group(cls=CommandGroups, epilog=EXAMPLES)
@click.version_option(__version__, prog_name="outbox")
def cli() -> None:
    """A transactional outbox for Peewee and Dramatiq."""


cli.add_command(archive)
cli.add_command(audit)
cli.add_command(bulk)
cli.add_command(cleanup)
cli.add_command(compat)
cli.add_command(completion)
cli.add_command(consume)
cli.add_command(dashboard)
cli.add_command(delete)
cli.add_command(deliver)
cli.add_command(destinations)
cli.add_command(doctor)
cli.add_command(drain)
cli.add_command(emit)
cli.add_command(encryption_key)
cli.add_command(erase)
cli.add_command(fail)
cli.add_command(export)
cli.add_command(health)
cli.add_command(init)
cli.add_command(keys)
cli.add_command(list_)
cli.add_command(metrics)
cli.add_command(pause)
cli.add_command(periodic)
cli.add_command(prove)
cli.add_command(recover)
cli.add_command(reencrypt)
cli.add_command(replay)
cli.add_command(resume)
cli.add_command(retire)
cli.add_command(retry)
cli.add_command(scheduler)
cli.add_command(schema)
cli.add_command(show)
cli.add_command(skip)
cli.add_command(status)
cli.add_command(streams)
cli.add_command(throttle)
cli.add_command(tail)
cli.add_command(up)
cli.add_command(version_)
cli.add_command(worker)

# Commands that serve all outboxes, or none.
WITHOUT_OUTBOX = {"completion", "consume", "encryption-key", "scheduler", "schema", "up", "version", "worker"}

for _name, _command in cli.commands.items():
    add_examples(_command, _name)
    if _name not in WITHOUT_OUTBOX:
        add_outbox_option(_command)


def main() -> None:
    """Run the console script; report errors that the user can fix in one line, without a traceback."""
    try:
        cli()
    except OutboxError as error:
        click.echo(f"outbox: {visible_lines(str(error))}", err=True)
        sys.exit(2)
    except CONNECTION_ERRORS as error:
        click.echo(f"outbox: {_explained(error)}", err=True)
        sys.exit(2)


def _explained(error: BaseException) -> str:
    if is_statement_timeout(error):
        return "the database took too long: another session may lock a table. `outbox status` says which."
    if is_lock_timeout(error):
        return visible_lines(describe_lock_timeout(current().dialect))
    what = visible_lines(as_sentence(error))
    return (
        f"can't use the database (OUTBOX_DATABASE_URL): {what} Start the database, or correct its address, and run the "
        "command again; `outbox doctor` says more."
    )
