"""Serve the pages that change nothing: the overview, the list of events, and one event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from outbox.admin import queries
from outbox.admin.blocked_keys import EventOrder, order_of
from outbox.admin.curl import curl_command, is_sent_by_webhook
from outbox.admin.event_state import DestinationState, destination_states, next_step
from outbox.admin.hidden_content import hide_in_event, hide_in_overview, hide_in_rows, values_of
from outbox.admin.history import History, read_history
from outbox.admin.job_view import JobView, job_view, listed_arguments
from outbox.admin.overview import Overview
from outbox.admin.overview import overview as read_overview
from outbox.admin.processes import processes
from outbox.admin.queries import Page
from outbox.admin.readable_row import readable_row
from outbox.admin.verdict import find, verdict_on
from outbox.admin.web import parameters
from outbox.admin.web.chart import make_chart
from outbox.admin.web.dashboard import Dashboard, dashboard_of
from outbox.admin.web.http_errors import HTTPError
from outbox.admin.web.permissions import PAYLOADS, VIEW, may, needed_for, require
from outbox.admin.web.render import render
from outbox.admin.web.sparkline import hours_per_bar
from outbox.admin.web.timeline import make_timeline
from outbox.core import Outbox
from outbox.operations.actions import ACTIONS, Action, actions_for, actions_on
from outbox.operations.count import Count
from outbox.storage.attempts import read_attempts
from outbox.storage.models import EVENT, JOB, OutboxEvent
from outbox.storage.operator_models import Attempt, Audit
from outbox.telemetry.audit import latest

# How many types and actors the overview offers at most, to show the chart of one of them.
MOST_SUBJECTS = 200


async def overview(request: Request) -> Response:
    """Show the counts, the activity of the last hour, why events failed, the destinations and the processes."""
    require(request, VIEW)
    dashboard, given, with_content = dashboard_of(request), request.query_params, may(request, PAYLOADS)
    box = dashboard.box
    over, scope = parameters.parse_range(given), parameters.parse_scope(given)

    def query() -> tuple[Overview, History, Scopes]:
        with box.dialect.connection():
            view = read_overview(box.dialect)
            with box.dialect.bounded():
                history, scopes = read_history(box.dialect, view.now, over, scope), _scopes(dashboard, view)
                return view if with_content else hide_in_overview(box.dialect, box.cipher, view), history, scopes

    view, history, scopes = await run_in_threadpool(query)
    findings = find(box, view)
    return render(
        request,
        "overview.html",
        view=view,
        now=view.now,
        history=history,
        chart=make_chart(history),
        scopes=scopes,
        hours_per_bar=hours_per_bar(view.failures, view.now),
        of=given.get("of", "").strip(),
        verdict=verdict_on(findings),
        findings=findings,
        destinations=destination_rows(view),
        retention=timedelta(hours=box.settings.retention_hours),
    )


@dataclass(frozen=True, slots=True)
class Scopes:
    """The names of what the overview's chart can be of."""

    destinations: list[str]
    types: list[str]
    actors: list[str]


def _scopes(dashboard: Dashboard, view: Overview) -> Scopes:
    dialect, limits = dashboard.box.dialect, replace(dashboard.scan_limits, names=MOST_SUBJECTS)
    destinations = sorted(name for name, each in view.recorded.items() if not each.retired)
    return Scopes(destinations, *queries.types_and_actors(dialect, limits))


@dataclass(frozen=True, slots=True)
class DestinationRow:
    """A row of the overview's table of destinations. `breaker` is None while the circuit breaker is closed."""

    name: str
    kind: str
    workers: int
    breaker: dict[str, Any] | None
    failed: Count


def destination_rows(view: Overview) -> list[DestinationRow]:
    """Return the destinations of the running workers. Those whose circuit breaker is not closed come first."""
    kinds: dict[str, str] = {}
    workers: Counter[str] = Counter()
    for process in view.workers:
        for name, details in process.details.get("destinations", {}).items():
            kinds[name] = str(details.get("kind", ""))
            workers[name] += 1
    rows = [
        DestinationRow(name, kinds.get(name, ""), workers[name], view.breakers.get(name), view.failed(name))
        for name in sorted({*kinds, *view.breakers})
    ]
    return sorted(rows, key=lambda row: row.breaker is None)


@dataclass(frozen=True, slots=True)
class Listing:
    """What the list of events shows. `count` is None for a search."""

    now: datetime
    page: Page
    # The arguments of the jobs on the page, masked, by id; None for a user who may not see them.
    arguments: dict[UUID, str] | None
    count: Count | None
    types: list[str]
    actors: list[str]


async def events(request: Request) -> Response:
    """List the events that match a filter or a search; redirect to the event if the search is its id."""
    require(request, VIEW)
    given = request.query_params
    filter = parameters.parse_filter(given)
    after = parameters.parse_after(given)
    search = parameters.parse_text(given, "q")
    dashboard = dashboard_of(request)
    box, limits = dashboard.box, dashboard.scan_limits

    def query() -> Listing:
        with box.dialect.bounded():
            now = box.dialect.now()
            names = queries.types_and_actors(box.dialect, limits)
            if search:
                page, count = Page(queries.search(box.dialect, search)), None
            else:
                page, count = queries.page_and_count(box.dialect, filter, after=after, limits=dashboard.scan_limits)
            arguments = _arguments(dashboard, page.events) if may(request, PAYLOADS) else None
            if arguments is None:
                hide_in_rows(box.dialect, box.cipher, page.events)
            return Listing(now, page, arguments, count, *names)

    listing = await run_in_threadpool(query)
    if search and len(listing.page.events) == 1 and _is_id(search):
        return RedirectResponse(dashboard.path(request, "event", id=listing.page.events[0].id), 303)
    return render(
        request,
        "events.html",
        now=listing.now,
        page=listing.page,
        arguments=listing.arguments,
        count=listing.count,
        types=listing.types,
        actors=listing.actors,
        only_kind=filter.only_kind,
        parameters=parameters.filter_parameters(given),
        fields=dict.fromkeys(parameters.NAMES, "") | parameters.filter_parameters(given),
        search=search,
        after=after,
        actions=allowed(request, actions_for(filter.status, filter.only_kind)),
        notice=notice(request, filter.only_kind),
    )


def _arguments(dashboard: Dashboard, events: list[OutboxEvent]) -> dict[UUID, str]:
    """Return the arguments of those of the rows that are jobs, masked and cut, by id."""
    payloads = queries.payloads_of_jobs(dashboard.box.dialect, events, dashboard.box.cipher)
    jobs = [event for event in events if event.kind == JOB]
    shown = {job.id: dashboard.redacted(job, payloads[job.id]) for job in jobs if job.id in payloads}
    return {job.id: listed_arguments(job, shown.get(job.id), dashboard.masking) for job in jobs}


@dataclass(frozen=True, slots=True)
class Content:
    """The payload of an event, or the message of a job, and the headers: redacted and masked."""

    payload: Any
    job: JobView | None
    headers: Any


@dataclass(frozen=True, slots=True)
class EventDetails:
    """What the page of one event shows, read in one connection.

    `content` is None for a user who may not see it.
    """

    event: OutboxEvent
    # Why its payload and headers can't be decrypted, if they can't.
    unreadable: str | None
    now: datetime
    content: Content | None
    states: list[DestinationState]
    audits: list[Audit]
    destination_names: list[str]
    order: EventOrder
    attempts: list[Attempt]
    curl: str | None


def _read_event(dashboard: Dashboard, id: UUID, *, with_content: bool) -> EventDetails | None:
    box = dashboard.box
    with box.dialect.bounded():
        event = queries.find(box.dialect, id)
        if event is None:
            return None
        event, unreadable = readable_row(event, box.cipher)
        states = destination_states(event, queries.delivered_to(box.dialect, event))
        attempts = read_attempts(box.dialect, id)
        if not with_content:
            values = None if unreadable is not None else values_of(event, box.cipher)
            states = hide_in_event(event, values, states, attempts)
        content = _content(dashboard, event) if with_content and unreadable is None else None
        return EventDetails(
            event,
            unreadable,
            box.dialect.now(),
            content,
            states,
            _audits_of(box, id),
            queries.destination_names(box.dialect, box.registry),
            order_of(box.dialect, event),
            attempts,
            None if content is None else _curl(box, event, content, states),
        )


def _curl(box: Outbox, event: OutboxEvent, content: Content, states: list[DestinationState]) -> str | None:
    """Return the request of a webhook as a command, if a webhook gets the event."""
    if not is_sent_by_webhook(processes(box.dialect), (state.destination for state in states)):
        return None
    return curl_command(event, content.payload, content.headers)


def _content(dashboard: Dashboard, event: OutboxEvent) -> Content:
    masking, payload = dashboard.masking, dashboard.redacted(event, event.payload)
    headers = masking.masked(event.headers)
    if event.kind == JOB and not isinstance(payload, str):
        return Content(None, job_view(event, payload, masking), headers)
    return Content(masking.masked(payload), None, headers)


async def event(request: Request) -> Response:
    """Show everything about one event or job, and the actions that apply to it."""
    require(request, VIEW)
    id = parameters.parse_id(request.path_params["id"])
    dashboard = dashboard_of(request)
    details = await run_in_threadpool(_read_event, dashboard, id, with_content=may(request, PAYLOADS))
    if details is None:
        raise HTTPError(404, "Event not found", f"{id} does not exist, or was deleted after its retention.")
    shown = details.event
    return render(
        request,
        "event.html",
        event=shown,
        job=job_view(shown, None) if shown.kind == JOB else None,
        content=details.content,
        now=details.now,
        next_step=next_step(shown, details.now, dashboard.box.settings, details.order),
        order=details.order,
        states=details.states,
        attempts=details.attempts,
        curl=details.curl,
        unreadable=details.unreadable,
        reached_none=shown.audience is not None,
        timeline=make_timeline(shown, details.now, details.audits, details.order.waits),
        actions=allowed(request, actions_on(shown)),
        targets=details.destination_names,
        notice=notice(request, shown.kind),
    )


def allowed(request: Request, actions: Iterable[Action]) -> list[Action]:
    """Return those of the actions that the user may run."""
    return [action for action in actions if may(request, needed_for(action))]


def notice(request: Request, kind: str | None = None) -> str | None:
    """Return what the last action has done, from the redirect's parameters; None if there are none.

    Only the name of a known action and a number are taken from the URL, so a link can't show any other text. `kind` is
    what the page shows.
    """
    action, number = ACTIONS.get(request.query_params.get("did", "")), request.query_params.get("number", "")
    if action is None:
        return None
    if number.isascii() and number.isdecimal() and len(number) < len(str(10**12)):
        return _describe_result(action, int(number), EVENT if kind is None else kind)
    return f"{action.label} is still running. It continues in the background; this page shows its progress."


def _describe_result(action: Action, number: int, noun: str) -> str:
    """Return what an action has done, as a sentence."""
    if number == 0:
        return f"Nothing was {action.done}: only {noun}s that {action.applies_to} can be."
    return f"{Count(number).of(noun)} {'was' if number == 1 else 'were'} {action.done}."


def _audits_of(box: Outbox, id: UUID) -> list[Audit]:
    """Return the latest actions that name this event by its id."""
    return [entry for entry in latest(box.dialect) if str(id) in entry.filters.get("ids", ())]


def _is_id(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True
