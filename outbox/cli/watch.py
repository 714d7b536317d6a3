"""`--watch`: print what a command prints again and again, until Ctrl-C."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from outbox.errors import OutboxError
from outbox.storage.connection_errors import CONNECTION_ERRORS
from outbox.text import visible_lines

F = TypeVar("F", bound=Callable[..., Any])

EVERY_SECONDS = 2.0


def watch_option(command: F) -> F:
    """Add `--watch [SECONDS]`. A database that is unavailable meanwhile does not end it."""

    @functools.wraps(command)
    def call(*args: Any, watch: float | None, **kwargs: Any) -> Any:
        if watch is None:
            return command(*args, **kwargs)
        try:
            while True:
                if sys.stdout.isatty():
                    click.clear()
                try:
                    command(*args, **kwargs)
                except (OutboxError, *CONNECTION_ERRORS) as error:
                    click.echo(f"outbox: {visible_lines(str(error).strip())}", err=True)
                sys.stdout.flush()
                time.sleep(watch)
        except KeyboardInterrupt:
            return None

    option = click.option(
        "--watch",
        is_flag=False,
        flag_value=EVERY_SECONDS,
        type=click.FloatRange(min=0, min_open=True),
        metavar="[SECONDS]",
        help=f"Print it again every {EVERY_SECONDS:g} seconds, or every SECONDS, until Ctrl-C.",
    )
    return option(call)  # type: ignore[return-value]
