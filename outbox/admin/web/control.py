"""Serve the page of the destinations with what controls them, and run what its buttons ask for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from outbox.admin.controls_view import describe_controls
from outbox.admin.processes import breakers, processes
from outbox.admin.web import csrf, parameters
from outbox.admin.web.action_request import read_form
from outbox.admin.web.dashboard import dashboard_of
from outbox.admin.web.http_errors import HTTPError
from outbox.admin.web.parameters import query_string
from outbox.admin.web.permissions import OPERATE, VIEW, operator_of, require
from outbox.admin.web.render import render
from outbox.core import Outbox
from outbox.destinations.controls import EVERYTHING, read_controls
from outbox.destinations.recorded_destinations import read_recorded
from outbox.errors import RegistrationError, SettingsError
from outbox.operations import controls
from outbox.operations.controls import PAUSE, RECOVER, RESUME, THROTTLE, UNTHROTTLE
from outbox.storage.dialect import Dialect
from outbox.telemetry.audit import Operator

# What the page says after an action. Only the action's name is taken from the URL, so a link can't show other text.
NOTICES = {
    PAUSE: "It is paused. Workers stop sending within seconds, and finish the deliveries that have begun.",
    RESUME: "It is resumed: the events that waited are due at once.",
    THROTTLE: "It is throttled. Workers apply the limit within seconds.",
    UNTHROTTLE: "It is no longer throttled: the events that waited are due at once.",
    RECOVER: "It is tried again: events that wait because it could not be reached become due, a few at a time.",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One destination on the page, or EVERYTHING."""

    name: str
    state: str
    events: str
    # What is in force, in words.
    control: str
    is_paused: bool
    is_throttled: bool
    # The state of its circuit breaker; None while that is closed.
    breaker: dict[str, Any] | None

    @property
    def is_everything(self) -> bool:
        return self.name == EVERYTHING

    @property
    def shown_name(self) -> str:
        return "Everything" if self.is_everything else self.name


async def control(request: Request) -> Response:
    """List the destinations with what is paused and throttled."""
    require(request, VIEW)
    now, rows = await run_in_threadpool(_read, dashboard_of(request).box.dialect)
    notice = NOTICES.get(request.query_params.get("did", ""))
    return render(request, "control.html", now=now, rows=rows, notice=notice)


async def act_on_control(request: Request) -> Response:
    """Pause, resume, throttle or recover a destination, as the page's form asks for, and redirect to the page."""
    require(request, OPERATE)
    form = await read_form(request)
    csrf.check(request, form)
    box = dashboard_of(request).box
    what = parameters.parse_text(form, "action")
    act = _action(box, what, form, operator_of(request))
    try:
        await run_in_threadpool(act)
    except (RegistrationError, SettingsError) as error:
        raise HTTPError(400, "This can't be done", str(error)) from None
    page, given = ("control", {}) if form.get("from") != "destination" else ("destination", {"name": form["name"]})
    return RedirectResponse(dashboard_of(request).path(request, page) + query_string(given, did=what), 303)


def _action(box: Outbox, what: str, form: QueryParams, operator: Operator) -> Callable[[], object]:
    """Return the call that the form asks for; raise HTTPError (400) if it asks for something else."""
    name, dialect, notify = parameters.parse_text(form, "name"), box.dialect, box.notifier.notify
    match what:
        case controls.PAUSE:
            reason = parameters.parse_text(form, "reason") or None
            lasting = _minutes(form)
            return partial(controls.pause, dialect, name, operator=operator, lasting=lasting, reason=reason)
        case controls.RESUME:
            return partial(controls.resume, dialect, notify, name, operator=operator)
        case controls.THROTTLE:
            rate, lasting = _number(form, "per_second"), _minutes(form)
            if rate is None:
                raise HTTPError(400, "No rate was given", "Enter how many events a second it may get.")
            return partial(controls.throttle, dialect, name, rate, operator=operator, lasting=lasting)
        case controls.UNTHROTTLE:
            return partial(controls.unthrottle, dialect, notify, name, operator=operator)
        case controls.RECOVER:
            close = box.throttles.close_breaker
            return partial(controls.recover, dialect, notify, close, name, operator=operator)
        case _:
            raise HTTPError(400, "Unknown action", f"“action” must be one of {', '.join(NOTICES)}.")


def _minutes(form: QueryParams) -> timedelta | None:
    minutes = _number(form, "minutes")
    try:
        return None if minutes is None else timedelta(minutes=minutes)
    except OverflowError:
        raise HTTPError(400, "Too long", "A pause or a throttle lasts at most a year.") from None


def _number(form: QueryParams, field: str) -> float | None:
    text = parameters.parse_text(form, field).strip()
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not number > 0:  # nor NaN
        raise HTTPError(400, "Not a number", f"“{field}” must be a number greater than 0.")
    return number


def _read(dialect: Dialect) -> tuple[datetime, list[Row]]:
    with dialect.bounded():
        recorded = read_recorded(dialect)[1]
        found, now = read_controls(dialect)
        unavailable = breakers(processes(dialect), now)
    in_force = describe_controls(found, now)
    names = sorted({*(name for name, each in recorded.items() if not each.retired), *in_force} - {EVERYTHING})
    rows = []
    for name in (EVERYTHING, *names):
        each, pause, throttle = recorded.get(name), found.pauses.get(name), found.throttles.get(name)
        rows.append(
            Row(
                name,
                "" if each is None else "running" if each.alive else "no worker has it",
                "" if each is None else ", ".join(each.patterns),
                in_force.get(name, ""),
                pause is not None and pause.is_active(now),
                throttle is not None and throttle.is_active(now),
                unavailable.get(name),
            )
        )
    return now, rows
