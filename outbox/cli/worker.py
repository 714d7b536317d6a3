"""`outbox worker [MODULE...]`: outbox workers, run by Dramatiq's own program."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

import click

from outbox.errors import SettingsError

BOOT = "outbox.dramatiq.worker:boot"


@click.command(
    short_help="Run workers, in processes of Dramatiq's.",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("arguments", metavar="[MODULE...] [OPTION...]", nargs=-1, type=click.UNPROCESSED)
@click.option("-p", "--processes", type=click.IntRange(min=1), help="Worker processes.  [default: one for each core]")
@click.option("-t", "--threads", type=click.IntRange(min=1), help="Threads in each of them.  [default: 8]")
def worker(arguments: tuple[str, ...], processes: int | None, threads: int | None) -> None:
    """Run workers that deliver to the handlers of MODULE and to what the settings declare.

    Also run the actors of MODULE. It may set a Dramatiq broker of your own; else OUTBOX_REDIS_URL names the Redis.
    Every other OPTION, after the modules, is Dramatiq's: --queues, --watch, --pid-file and others (`dramatiq --help`).
    Stop it with Ctrl-C or SIGTERM; what is in flight is finished.
    """
    modules, options = split(arguments)
    if processes is not None:
        options += ["--processes", str(processes)]
    if threads is not None:
        options += ["--threads", str(threads)]
    become_dramatiq(modules, options)


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the modules, and what follows them from the first option on."""
    first = next((place for place, each in enumerate(arguments) if each.startswith("-")), len(arguments))
    return list(arguments[:first]), list(arguments[first:])


def become_dramatiq(modules: Sequence[str], options: Sequence[str]) -> None:
    """Replace this process by Dramatiq's program: its signals, its exit code and its reloading are then its own."""
    from outbox.dramatiq.worker import MODULES_VARIABLE

    environment = os.environ | {MODULES_VARIABLE: shlex.join(modules)}
    command = [sys.executable, "-m", "dramatiq", BOOT, *options]
    try:
        os.execve(sys.executable, command, environment)  # noqa: S606 - no shell, on purpose
    except OSError as error:
        raise SettingsError(f"{sys.executable} can't be started: {error.strerror}") from None
