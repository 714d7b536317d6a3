"""Run an action on many events: count them, ask for confirmation, show the progress.

`outbox retry`, `skip`, `fail`, `delete` and `replay` use it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

import click

from outbox.cli.breakdown import echo_breakdown
from outbox.cli.event_id import EventId, parse_partial_id, resolve_all
from outbox.cli.interruption import Interruption
from outbox.cli.operator import operator
from outbox.cli.options import filter_options, modules_option
from outbox.cli.output import one_line
from outbox.core import Outbox
from outbox.current_outbox import current
from outbox.operations import apply_action
from outbox.operations.actions import DELETE, DELETE_EVERYTHING, REPLAY, RETRY, Action
from outbox.operations.breakdown import breakdown
from outbox.operations.count import Count
from outbox.operations.filters import Filter
from outbox.storage.models import EVENT, JOB
from outbox.telemetry.audit import Interrupted

F = TypeVar("F", bound=Callable[..., Any])


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
        click.argument("ids", metavar="[ID...]", nargs=-1, type=parse_partial_id),
    ):
        decorated = decorate(decorated)
    return decorated  # type: ignore[no-any-return]


def run(
    action: Action,
    *,
    ids: tuple[EventId, ...],
    filter: Filter,
    everything: bool,
    dry_run: bool,
    yes: bool,
    limit: int | None,
    per_second: float | None,
) -> None:
    """Count the events, ask for confirmation, run the action, and print how many events it has changed."""
    if filter.is_empty and not ids and not everything:
        raise click.UsageError("Give the ids of events, or filters, or --all.")
    box = current()
    box.check_schema()
    if ids:
        filter = replace(filter, ids=resolve_all(box, ids))
    noun = JOB if filter.only_kind == JOB else EVENT
    matching = apply_action.count_all(box.dialect, action, filter)
    matching = matching if limit is None else min(limit, matching)
    if dry_run:
        click.echo(f"{Count(matching).of(noun)} would be {action.done}.")
        echo_breakdown(breakdown(box.dialect, action, filter))
        _tell_of_erased(box, action, filter)
        return
    _tell_of_erased(box, action, filter)
    if matching == 0:
        click.echo(f"No {noun}s to be {action.done} match.")
        sys.exit(1)
    if action.name == DELETE.name and filter.is_empty and limit is None:
        _ask_to_type(DELETE_EVERYTHING, matching)
    elif not yes:
        for sentence in action.job_consequences if noun == JOB else action.consequences:
            click.echo(sentence, err=True)
        click.confirm(f"{Count(matching).of(noun)} will be {action.done}. Continue?", abort=True, err=True)
    with Interruption() as interruption:
        work = apply_action.apply(
            box.dialect,
            box.notifier.notify_after_commit,
            action,
            filter,
            operator=operator(),
            limit=limit,
            per_second=per_second,
            sleep=interruption.requested.wait,
        )
        count = show_progress(work, matching, action.name, noun, interruption)
    box.notifier.flush()
    click.echo(f"{Count(count).of(noun)} {'was' if count == 1 else 'were'} {action.done}.")


def _tell_of_erased(box: Outbox, action: Action, filter: Filter) -> None:
    """Say how many events are left out because their content was erased: a receiver would get other content."""
    if action.name in (RETRY.name, REPLAY.name) and (erased := apply_action.count_erased(box.dialect, action, filter)):
        click.echo(
            f"{Count(erased).of(EVENT)} left out: the content was erased (outbox erase), so nothing can be delivered.",
            err=True,
        )


def _ask_to_type(words: str, matching: int) -> None:
    """Exit unless the operator types these words: `--yes` is too easily added to a command that deletes everything."""
    click.echo(f"All {Count(matching).of('event')} that have ended will be deleted. This can't be undone.", err=True)
    typed = click.prompt(f'Type "{words}" to continue', default="", show_default=False, err=True)
    if typed.strip() != words:
        raise click.Abort


def show_progress(
    work: Generator[int], matching: int, name: str, noun: str, interruption: Interruption, *, can_resume: bool = True
) -> int:
    """Run the action with a progress bar on standard error; return how many events it has changed.

    If a signal asks the command to stop, exit after the current batch. `can_resume`: outbox bulk can go on with it.
    """
    count = 0
    progress: Any = click.progressbar(length=matching, label=name, file=sys.stderr, show_pos=True)
    try:
        with progress:
            for so_far in work:
                progress.update(so_far - count)
                count = so_far
                if interruption.requested.is_set():
                    work.throw(Interrupted(interruption.name))
    except Interrupted as stopped:
        if not interruption.requested.is_set():
            go_on = "To go on: outbox bulk" if can_resume else "Run the same command again for the rest."
            click.echo(f"Interrupted by {one_line(stopped)}, after {Count(count).of(noun)}. {go_on}", err=True)
            sys.exit(1)
        _exit_interrupted(count, noun, interruption)
    except KeyboardInterrupt:
        _exit_interrupted(count, noun, interruption)
    return count


def _exit_interrupted(count: int, noun: str, interruption: Interruption) -> NoReturn:
    click.echo(f"Interrupted after {Count(count).of(noun)}. Run the same command again for the rest.", err=True)
    sys.exit(interruption.exit_code)
