"""`outbox periodic`: list the periodic jobs; run one now, pause, resume or forget it."""

from __future__ import annotations

from typing import Any

import click

from outbox.admin.periodic_jobs import PeriodicView, read_periodic_jobs
from outbox.cli.operator import operator
from outbox.cli.options import json_option, modules_option
from outbox.cli.output import echo_json, echo_table
from outbox.current_outbox import current
from outbox.operations import periodic_jobs
from outbox.operations.periodic_jobs import FORGET, PAUSE, RESUME, RUN_NOW, PeriodicAction


@click.group(short_help="List periodic jobs; run one now, pause or resume it.", invoke_without_command=True)
@json_option
@modules_option
@click.pass_context
def periodic(context: click.Context, as_json: bool) -> None:
    """List the periodic jobs that schedulers have declared: schedule, last run, and next run.

    Times are in UTC; the next run is also shown in the job's timezone. A run of a function is shown with its outcome
    and how long the call took, and a run of an actor with the time at which its message was enqueued. The commands
    below change one job; the audit log records them.
    """
    if context.invoked_subcommand is not None:
        return
    box = current()
    box.check_schema()
    views = read_periodic_jobs(box.dialect)
    if as_json:
        echo_json([_as_data(view) for view in views])
    elif views:
        _echo(views)
    else:
        click.echo("No scheduler has declared any periodic job yet.")


def _echo(views: list[PeriodicView]) -> None:
    echo_table(
        ("name", "kind", "schedule", "state", "last run (UTC)", "next run (UTC)", "next run, local", "outcome"),
        [
            (
                view.job.name,
                view.job.kind,
                view.job.words,
                view.state,
                view.job.last_run_at,
                view.next_run_at,
                view.next_run_local,
                "; ".join(filter(None, (view.outcome, view.skipped))),
            )
            for view in views
        ],
    )


def _as_data(view: PeriodicView) -> dict[str, Any]:
    job = view.job
    return {
        "name": job.name,
        "kind": job.kind,
        "schedule": job.schedule,
        "words": job.words,
        "timezone": job.timezone,
        "state": view.state,
        "paused": job.paused,
        "seen_at": job.seen_at,
        "last_run_at": job.last_run_at,
        "last_run_id": job.last_run_id,
        "outcome": view.outcome,
        "seconds": job.ended_seconds if job.ended_id == job.last_run_id else None,
        "skipped": view.skipped or None,
        "requested_at": job.requested_at,
        "next_run_at": view.next_run_at,
        "next_run_local": view.next_run_local or None,
    }


def _apply(action: PeriodicAction, name: str) -> None:
    box = current()
    box.check_schema()
    click.echo(periodic_jobs.apply(box.dialect, action, name, operator=operator()))


@periodic.command(short_help="Run a periodic job now.")
@click.argument("name")
@modules_option
def run(name: str) -> None:
    """Run a periodic job once, as soon as a scheduler that has it looks. Its schedule is not changed.

    A job with overlap="skip" does not run if its last run has not ended. A paused job runs.
    """
    _apply(RUN_NOW, name)


@periodic.command(short_help="Stop storing runs of a periodic job.")
@click.argument("name")
@modules_option
def pause(name: str) -> None:
    """Store no more runs of a periodic job until it is resumed. Runs that are stored already are not affected."""
    _apply(PAUSE, name)


@periodic.command(short_help="Let a paused periodic job run again.")
@click.argument("name")
@modules_option
def resume(name: str) -> None:
    """Let a paused periodic job run again, from its next scheduled time on. The times of the pause are not run."""
    _apply(RESUME, name)


@periodic.command(short_help="Remove a job that was removed from the code.")
@click.argument("name")
@modules_option
def forget(name: str) -> None:
    """Remove from the list a periodic job that was removed from the code. Refuse it while a scheduler has the job.

    A job that no scheduler has had for 90 days is removed by the clean-up.
    """
    _apply(FORGET, name)
