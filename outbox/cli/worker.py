"""`outbox worker [MODULE...]`: run workers, in the processes of Dramatiq's own program."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

import click

from outbox.errors import SettingsError

# The function that Dramatiq's program calls in each worker process.
BOOT = "outbox.dramatiq.worker:boot"
# With one of them, the user says where Dramatiq searches for modules.
PATH_OPTIONS = ("--path", "-P")


@click.command(
    short_help="Run worker processes.",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("arguments", metavar="[MODULE...] [OPTION...]", nargs=-1, type=click.UNPROCESSED)
@click.option("-p", "--processes", type=click.IntRange(min=1), help="Run this many processes.  [default: one per core]")
@click.option(
    "-t", "--threads", type=click.IntRange(min=1), help="Run this many threads in each process.  [default: 8]"
)
def worker(arguments: tuple[str, ...], processes: int | None, threads: int | None) -> None:
    """Run workers that deliver to the handlers of MODULE and to the destinations that the settings declare.

    They also run the Dramatiq actors of MODULE. MODULE may set your own Dramatiq broker; otherwise the broker is the
    Redis of OUTBOX_REDIS_URL. Options after the modules are passed to Dramatiq: --queues, --watch, --pid-file and
    others (see `dramatiq --help`). Stop it with Ctrl-C or SIGTERM; the workers finish the deliveries in flight.
    """
    modules, options = split_arguments(arguments)
    if processes is not None:
        options += ["--processes", str(processes)]
    if threads is not None:
        options += ["--threads", str(threads)]
    become_dramatiq(modules, options)


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the modules, and the options that follow them."""
    first = next((index for index, each in enumerate(arguments) if each.startswith("-")), len(arguments))
    return list(arguments[:first]), list(arguments[first:])


def become_dramatiq(modules: Sequence[str], options: Sequence[str]) -> None:
    """Replace this process with Dramatiq's program, which then handles signals, exit code and reloading itself.

    Python, because of `-m`, and Dramatiq would both import modules from the working directory. `-P` and an empty
    `--path` switch that off; `import_modules` adds the directory if there are modules.
    """
    from outbox.dramatiq.worker import MODULES_VARIABLE

    environment = os.environ | {MODULES_VARIABLE: shlex.join(modules)}
    search_path = [] if any(each.split("=")[0] in PATH_OPTIONS for each in options) else ["--path"]
    command = [sys.executable, "-P", "-m", "dramatiq", BOOT, *options, *search_path]
    try:
        os.execve(sys.executable, command, environment)  # noqa: S606 - no shell, on purpose
    except OSError as error:
        raise SettingsError(f"{sys.executable} can't be started: {error.strerror}") from None
