"""`outbox pause`, `resume`, `throttle`, `recover` and `drain`: control deliveries while workers run."""

from __future__ import annotations

import sys
import time
from datetime import timedelta

import click

from outbox.admin.durations import format_duration
from outbox.cli import complete_names
from outbox.cli.operator import operator
from outbox.cli.options import modules_option, parse_age
from outbox.cli.output import to_the_second
from outbox.core import Outbox
from outbox.current_outbox import current
from outbox.destinations.controls import EVERYTHING, Pause, Throttle, read_controls
from outbox.operations import controls
from outbox.operations.count import Count

NOT_DRAINED = 1
LOOK_SECONDS = 0.2

for_option = click.option(
    "--for", "lasting", type=parse_age, metavar="TIME", help="End it after this time: 90s, 15m, 2h.  [default: never]"
)
force_option = click.option("--force", is_flag=True, help="Accept a name that no worker has recorded.")
all_option = click.option("--all", "everything", is_flag=True, help="Everything: all destinations, jobs and runs.")


@click.command(short_help="Stop deliveries to a destination, or all, for a while.")
@click.argument("name", required=False, shell_complete=complete_names.destinations)
@all_option
@for_option
@click.option("--reason", default="", help="Store this reason; outbox status and the dashboard show it.")
@force_option
@modules_option
def pause(name: str | None, everything: bool, lasting: timedelta | None, reason: str, force: bool) -> None:
    """Stop deliveries to the destination NAME, or with --all to everything, until outbox resume or for a TIME.

    Workers stop sending within seconds, and finish the deliveries that have begun. Waiting events lose no attempt, and
    the time of the pause does not count towards OUTBOX_MAX_AGE_HOURS. Events can still be emitted.
    """
    target, box = _target(name, everything=everything), _box()
    made = controls.pause(box.dialect, target, operator=operator(), lasting=lasting, reason=reason or None, force=force)
    click.echo(f"{_shown(target)} is paused {_until(made)}.")


@click.command(short_help="End a pause.")
@click.argument("name", required=False, shell_complete=complete_names.destinations)
@all_option
@modules_option
def resume(name: str | None, everything: bool) -> None:
    """End the pause of the destination NAME, or with --all that of everything. The waiting events are due at once.

    A destination that is paused by itself stays paused after outbox resume --all.
    """
    target, box = _target(name, everything=everything), _box()
    was_paused, due = controls.resume(box.dialect, box.notifier.notify, target, operator=operator())
    box.notifier.notify()
    box.notifier.flush()
    click.echo(f"{_shown(target)} {'is resumed' if was_paused else 'was not paused'}: {_due(due)}.")


@click.command(short_help="Limit how many events a second a destination gets.")
@click.argument("name", shell_complete=complete_names.destinations)
@click.argument("per_second", type=float, required=False)
@click.option("--off", is_flag=True, help="End it.")
@for_option
@force_option
@modules_option
def throttle(name: str, per_second: float | None, off: bool, lasting: timedelta | None, force: bool) -> None:
    """Limit how many events a second the destination NAME gets: PER_SECOND, for all workers together.

    Without Redis, each worker process applies the limit by itself. A lower limit in the code stays in force.
    """
    box = _box()
    if off == (per_second is not None):
        raise click.UsageError("Give the number of events a second, or --off.")
    if per_second is None:
        was_throttled, due = controls.unthrottle(box.dialect, box.notifier.notify, name, operator=operator())
        box.notifier.flush()
        click.echo(f"{name} {'is no longer throttled' if was_throttled else 'was not throttled'}: {_due(due)}.")
        return
    made = controls.throttle(box.dialect, name, per_second, operator=operator(), lasting=lasting, force=force)
    click.echo(f"{name} gets at most {per_second:g} events a second {_until(made)}.")


@click.command(short_help="Say that a destination can be reached again.")
@click.argument("name", shell_complete=complete_names.destinations)
@click.option(
    "--per-second",
    type=click.FloatRange(min=0, min_open=True),
    help="Try at most this many waiting events per second.  [default: slowly at first]",
)
@force_option
@modules_option
def recover(name: str, per_second: float | None, force: bool) -> None:
    """Say that the destination NAME can be reached again: it is tried at once instead of at the next probe.

    Its circuit breaker closes, and events that wait because it could not be reached are due, a few at a time. Events
    that it has refused keep their backoff; outbox retry --waiting makes these due, too.
    """
    box = _box()
    due = controls.recover(
        box.dialect,
        box.notifier.notify,
        box.throttles.close_breaker,
        name,
        operator=operator(),
        per_second=per_second,
        force=force,
    )
    box.notifier.flush()
    click.echo(f"{name} is tried again: {_due(due)}.")


@click.command(short_help="Wait until what is being delivered has ended.")
@click.option("--pause", "first_pause", is_flag=True, help="Pause everything first.")
@click.option("--timeout", type=parse_age, default="5m", show_default=True, help="Give up after this time.")
@modules_option
def drain(first_pause: bool, timeout: timedelta) -> None:
    """Wait until what workers are delivering right now has ended: before a deployment, or after outbox pause.

    It does not wait for events that workers claim later. With --pause, they claim nothing until outbox resume --all.
    The exit code is 1 if something is still being delivered after the timeout.
    """
    box = _box()
    if first_pause:
        controls.pause(box.dialect, EVERYTHING, operator=operator(), reason="outbox drain")
        click.echo("Everything is paused until it is resumed: outbox resume --all")
    elif not _is_everything_paused(box):
        click.echo("Workers continue to claim events. This command waits only for those that they have now.", err=True)
    started_at = time.monotonic()
    leases = before = controls.in_flight(box.dialect)
    while leases and time.monotonic() - started_at < timeout.total_seconds():
        time.sleep(LOOK_SECONDS)
        leases = {id: count for id, count in controls.in_flight(box.dialect).items() if id in before}
    if leases:
        left = Count(sum(leases.values())).of("event")
        click.echo(f"Still being delivered after {format_duration(timeout)}: {left}.", err=True)
        sys.exit(NOT_DRAINED)
    ended = Count(sum(before.values())).of("event")
    click.echo(f"The deliveries that were under way have ended ({ended})." if before else "Nothing is being delivered.")


def _box() -> Outbox:
    box = current()
    box.check_schema()
    return box


def _target(name: str | None, *, everything: bool) -> str:
    if everything == (name is not None):
        raise click.UsageError("Give the name of a destination, or --all.")
    return EVERYTHING if name is None else name


def _shown(target: str) -> str:
    return "Everything" if target == EVERYTHING else target


def _until(made: Pause | Throttle) -> str:
    end = "it is resumed" if isinstance(made, Pause) else "it is ended"
    return f"until {end if made.until is None else f'{to_the_second(made.until)} (UTC)'}"


def _due(count: int) -> str:
    return f"{Count(count).of('event')} made due" if count else "no event was waiting"


def _is_everything_paused(box: Outbox) -> bool:
    with box.dialect.bounded():
        found, now = read_controls(box.dialect)
    pause = found.pauses.get(EVERYTHING)
    return pause is not None and pause.is_active(now)
