"""Run an action on many events: count them, ask for confirmation, show the progress.

`outbox retry`, `fail`, `delete` and `replay` use it. `outbox retire` uses `operator`.
"""

from __future__ import annotations

import getpass
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar
from uuid import UUID

import click

from outbox.cli.options import filter_options, modules_option, parse_event_id
from outbox.current_outbox import current
from outbox.errors import SettingsError
from outbox.operations import apply_action
from outbox.operations.actions import Action
from outbox.operations.count import Count
from outbox.operations.filters import Filter
from outbox.storage.models import EVENT, JOB

F = TypeVar("F", bound=Callable[..., Any])

# The exit code after Ctrl-C, as shells report it: 128 + SIGINT.
INTERRUPTED = 130


def bulk_options(command: F) -> F:
    """Add the arguments that select events, by ids or filters, and the options of `run`."""
    decorated: Any = command
    for decorate in (
        click.option(
            "--per-second",
            type=click.FloatRange(min=0, min_open=True),
            help="Change at most this many events per second.",
        ),
        click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Change at most N events."),
        click.option("-y", "--yes", is_flag=True, help="Don't ask for confirmation."),
        click.option("--dry-run", is_flag=True, help="Only print how many events would be changed."),
        click.option("--all", "everything", is_flag=True, help="Change all events; required without ids and filters."),
        filter_options,
        modules_option,
        click.argument("ids", metavar="[ID...]", nargs=-1, type=parse_event_id),
    ):
        decorated = decorate(decorated)
    return decorated  # type: ignore[no-any-return]


def run(
    action: Action,
    *,
    ids: tuple[UUID, ...],
    filter: Filter,
    everything: bool,
    dry_run: bool,
    yes: bool,
    limit: int | None,
    per_second: float | None,
) -> None:
    """Count the events, ask for confirmation, run the action, and print how many events it has changed."""
    if ids:
        filter = replace(filter, ids=ids)
    noun = JOB if filter.only_kind == JOB else EVENT
    if filter.is_empty and not everything:
        raise click.UsageError("Give the ids of events, or filters, or --all.")
    box = current()
    box.check_schema()
    matching = apply_action.count_all(box.dialect, action, filter)
    matching = matching if limit is None else min(limit, matching)
    if dry_run:
        click.echo(f"{Count(matching).of(noun)} would be {action.done}.")
        return
    if matching == 0:
        click.echo(f"No {noun}s to be {action.done} match.")
        sys.exit(1)
    if not yes:
        click.confirm(f"{Count(matching).of(noun)} will be {action.done}. Continue?", abort=True, err=True)
    work = apply_action.apply(
        box.dialect,
        box.notifier.notify_after_commit,
        action,
        filter,
        who=operator(),
        limit=limit,
        per_second=per_second,
    )
    count = _show_progress(work, matching, action.name, noun)
    box.notifier.flush()
    click.echo(f"{Count(count).of(noun)} {'was' if count == 1 else 'were'} {action.done}.")


def _show_progress(work: Iterator[int], matching: int, name: str, noun: str) -> int:
    """Run the action with a progress bar on standard error; return how many events it has changed."""
    count = 0
    progress: Any = click.progressbar(length=matching, label=name, file=sys.stderr, show_pos=True)
    try:
        with progress:
            for so_far in work:
                progress.update(so_far - count)
                count = so_far
    except KeyboardInterrupt:
        click.echo(f"Interrupted after {Count(count).of(noun)}. Run the same command again for the rest.", err=True)
        sys.exit(INTERRUPTED)
    return count


def operator() -> str:
    """Return the name of the operator for the audit log: user and host."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError, ImportError):
        raise SettingsError("Cannot determine the user for the audit log: set LOGNAME.") from None
