"""The command line: the `outbox` program and its subcommands, one module each.

This is the outermost layer: it may import all other layers, and none of them imports it. Commands that need Dramatiq,
APScheduler or Starlette import them when they run, so that `outbox --help` and `outbox emit` work without them.
"""

from __future__ import annotations

import sys

import click

from outbox.cli.command_groups import EXAMPLES, CommandGroups
from outbox.cli.lazy_commands import LazyCommands
from outbox.errors import OutboxError, as_sentence
from outbox.storage.connection_errors import CONNECTION_ERRORS, is_lock_timeout, is_statement_timeout
from outbox.text import visible_lines
from outbox.version import __version__

# Where each command is.
COMMANDS = {
    "archive": "archive:archive",
    "audit": "audit:audit",
    "bulk": "bulk_actions:bulk",
    "cleanup": "cleanup:cleanup",
    "compat": "compat:compat",
    "completion": "completion:completion",
    "consume": "consume:consume",
    "dashboard": "dashboard:dashboard",
    "delete": "actions:delete",
    "deliver": "deliver:deliver",
    "destinations": "destinations:destinations",
    "doctor": "doctor:doctor",
    "drain": "control:drain",
    "emit": "emit:emit",
    "encryption-key": "encryption_key:encryption_key",
    "erase": "erase:erase",
    "fail": "actions:fail",
    "export": "export:export",
    "health": "health:health",
    "init": "init:init",
    "keys": "keys:keys",
    "list": "list:list_",
    "metrics": "metrics:metrics",
    "pause": "control:pause",
    "periodic": "periodic:periodic",
    "prove": "prove:prove",
    "recover": "control:recover",
    "reencrypt": "reencrypt:reencrypt",
    "replay": "actions:replay",
    "resume": "control:resume",
    "retire": "destinations:retire",
    "retry": "actions:retry",
    "scheduler": "scheduler:scheduler",
    "schema": "schema:schema",
    "show": "show:show",
    "skip": "actions:skip",
    "status": "status:status",
    "streams": "streams:streams",
    "throttle": "control:throttle",
    "tail": "tail:tail",
    "up": "up:up",
    "version": "version:version_",
    "worker": "worker:worker",
}
# Commands that serve all outboxes, or none.
WITHOUT_OUTBOX = {"completion", "consume", "encryption-key", "scheduler", "schema", "up", "version", "worker"}


@click.group(cls=CommandGroups, epilog=EXAMPLES, commands=LazyCommands(COMMANDS, without_outbox=WITHOUT_OUTBOX))
@click.version_option(__version__, prog_name="outbox")
def cli() -> None:
    """A transactional outbox for Peewee and Dramatiq."""


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
        from outbox.admin.lock_waits import describe_lock_timeout
        from outbox.current_outbox import current

        return visible_lines(describe_lock_timeout(current().dialect))
    what = visible_lines(as_sentence(error))
    return (
        f"can't use the database (OUTBOX_DATABASE_URL): {what} Start the database, or correct its address, and run the "
        "command again; `outbox doctor` says more."
    )
