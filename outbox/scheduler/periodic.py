"""Declare periodic jobs: `@outbox.periodic(cron="0 3 * * *")` on an actor or a function.

Declaring registers the job in this process, and does nothing else. A scheduler that imports the module stores the runs
(`store_runs.py`). A worker that imports it calls the function.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import peewee

from outbox.current_outbox import current, registry
from outbox.destinations.outcome import Outcome
from outbox.destinations.periodic_job import (
    ALLOW,
    CATCH_UP,
    LATEST,
    OVERLAP,
    PeriodicFunction,
    PeriodicJob,
    Run,
    error_of,
)
from outbox.dramatiq.periodic_actor import actor_of, check_takes_no_arguments
from outbox.errors import InvalidEvent, OutboxError, RegistrationError
from outbox.events.event_types import path_of
from outbox.events.validate import check_text
from outbox.scheduler.schedule import DEFAULT_TIMEZONE, Schedule, make_schedule
from outbox.storage.models import NAME_LENGTH
from outbox.text import clean_error

logger = logging.getLogger(__name__)

F = TypeVar("F")
P = ParamSpec("P")
R = TypeVar("R")

MOST_ATTEMPTS = 1_000


def _needs_parentheses(decorator: Callable[P, R]) -> Callable[P, R]:
    """Raise RegistrationError if the decorator is used without parentheses."""

    @functools.wraps(decorator)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if args:
            raise RegistrationError(
                'A periodic job needs a schedule: write @outbox.periodic(cron="0 3 * * *") or '
                "@outbox.periodic(minutes=5), with parentheses and named arguments."
            )
        return decorator(*args, **kwargs)

    return call


@_needs_parentheses
def periodic(
    *,
    cron: str | None = None,
    timezone: str = DEFAULT_TIMEZONE,
    weeks: float | None = None,
    days: float | None = None,
    hours: float | None = None,
    minutes: float | None = None,
    seconds: float | None = None,
    name: str | None = None,
    catch_up: str = LATEST,
    overlap: str = ALLOW,
    max_attempts: int | None = None,
) -> Callable[[F], F]:
    """Run an actor or a function at the times of a cron expression, or at an interval.

    Each scheduled time is one run, however many schedulers there are. On a Dramatiq actor, put it above
    `@dramatiq.actor`: each run is a message without arguments, which is enqueued on the actor's broker. A plain
    function is called by workers, with an `outbox.Run`, and is retried as a handler is.

    - `cron`: five fields, as in crontab(5): minute, hour, day of the month, month, day of the week.
    - `timezone`: the timezone of `cron`, such as "Europe/Berlin".
    - `weeks` to `seconds`: an interval, the sum of those that are given, counted from 1970-01-01 00:00 UTC.
    - `name`: by default the actor's name, or the function's path. The last scheduled time is kept by it: a job with a
      new name is a new job.
    - `catch_up`: what to do about times that passed while no scheduler ran. "latest" runs the latest of them, "all" all
      of them, at most 100, and "none" none that are more than a minute late.
    - `overlap`: what to do if the function's last run has not ended. "allow" stores a run, "skip" skips it.
    - `max_attempts`: how often a run of the function is attempted; by default OUTBOX_MAX_ATTEMPTS.
    """
    units = {"weeks": weeks, "days": days, "hours": hours, "minutes": minutes, "seconds": seconds}
    options = _Options(name, make_schedule(cron, units, timezone), catch_up, overlap, max_attempts)
    _check_choice("catch_up", catch_up, CATCH_UP)
    _check_choice("overlap", overlap, OVERLAP)

    def declare(target: F) -> F:
        actor = actor_of(target)
        registry.add_periodic(_function_job(target, options) if actor is None else _actor_job(actor, options))
        return target

    return declare


@dataclass(frozen=True, slots=True)
class _Options:
    """What was declared, beside the actor or function."""

    name: str | None
    schedule: Schedule
    catch_up: str
    overlap: str
    max_attempts: int | None


def _actor_job(actor: Any, options: _Options) -> PeriodicJob:
    name = _check_name(actor.actor_name if options.name is None else options.name)
    if options.overlap != ALLOW:
        raise RegistrationError(
            f'The periodic job {name!r} is an actor, for which overlap="{options.overlap}" is not possible: its run '
            "ends for the outbox when the message is enqueued, so it does not know whether the actor still runs. "
            "Declare a plain function instead, or use a lock in the actor."
        )
    if options.max_attempts is not None:
        raise RegistrationError(
            f"The periodic job {name!r} is an actor, which Dramatiq retries: pass max_retries to @dramatiq.actor "
            "instead of max_attempts."
        )
    check_takes_no_arguments(actor)
    return PeriodicJob(name, options.schedule, options.catch_up, options.overlap, actor=actor)


def _function_job(function: Any, options: _Options) -> PeriodicJob:
    if not callable(function):
        raise RegistrationError(f"@outbox.periodic takes a function or an actor, not {function!r}.")
    path = path_of(function)
    if inspect.iscoroutinefunction(function):
        raise RegistrationError(
            f"{path} is a coroutine function, and periodic functions are called, not awaited: write a plain function; "
            "run a coroutine inside it with asyncio.run(...)."
        )
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        raise RegistrationError(
            f"{path} can't be called with one argument, and a periodic function gets the run alone: def job(run). "
            "If it is an actor, put @outbox.periodic above @dramatiq.actor."
        ) from None
    most = options.max_attempts
    if most is not None and (type(most) is not int or not 1 <= most <= MOST_ATTEMPTS):
        raise RegistrationError(f"max_attempts must be a whole number from 1 to {MOST_ATTEMPTS}, not {most!r}.")
    name = _check_name(path if options.name is None else options.name)
    destination = PeriodicFunction(function, name, _report)
    return PeriodicJob(
        name, options.schedule, options.catch_up, options.overlap, function=destination, max_attempts=most
    )


def _check_name(name: str) -> str:
    try:
        name = check_text(name, "name", NAME_LENGTH)
    except InvalidEvent as error:
        raise RegistrationError(f"The name of a periodic job is invalid: {error} Pass name=…") from None
    if "*" in name or not name.isprintable() or name != name.strip():
        raise RegistrationError(
            f"The name of a periodic job must have no '*', no control characters and no spaces around it: not {name!r}."
        )
    return name


def _check_choice(parameter: str, given: object, choices: tuple[str, ...]) -> None:
    if given not in choices:
        raise RegistrationError(f"{parameter} must be one of {', '.join(choices)}, not {given!r}.")


def _report(run: Run, seconds: float, outcome: Outcome) -> None:
    """Record how the call of a function ended, for operators. An error here does not affect the run."""
    dialect = current().dialect
    error = error_of(outcome)
    values = (dialect.id(run.id), seconds, None if error is None else clean_error(error), run.name)
    try:
        with dialect.connection():
            dialect.run(dialect.statements.periodic_ended, values)
    except (peewee.PeeweeException, OutboxError) as failure:
        logger.debug("Could not record the end of a run of %s: %s", run.name, failure)
