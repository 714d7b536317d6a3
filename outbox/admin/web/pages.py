"""Serve the pages that change nothing: the overview, the list of events, one event, and the audit log."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from outbox.admin import queries
from outbox.admin.event_state import DestinationState, destination_states, next_step
from outbox.admin.job_view import job_view, listed_arguments
from outbox.admin.overview import Overview
from outbox.admin.overview import overview as read_overview
from outbox.admin.queries import Page
from outbox.admin.web import parameters
from outbox.admin.web.alerts import find_alerts
from outbox.admin.web.chart import make_chart
from outbox.admin.web.dashboard import Dashboard, dashboard_of
from outbox.admin.web.http_errors import HTTPError
from outbox.admin.web.render import render
from outbox.admin.web.timeline import make_timeline
from outbox.core import Outbox
from outbox.operations.actions import ACTIONS, Action, actions_for
from outbox.operations.audit import latest
from outbox.operations.count import Count
from outbox.storage.models import EVENT, JOB, OutboxEvent
from outbox.storage.operator_models import Audit


async def overview(request: Request) -> Response:
    """Show the counts, the activity of the last hour, why events failed, the destinations and the processes."""
    view = await run_in_threadpool(read_overview, dashboard_of(request).box.dialect)
    return render(
        request,
        "overview.html",
        view=view,
        now=view.now,
        chart=make_chart(view.activity),
        alerts=find_alerts(view),
        destinations=destination_rows(view),
        retention=timedelta(hours=dashboard_of(request).box.settings.retention_hours),
    )


@dataclass(frozen=True, slots=True)
class DestinationRow:
    """A row of the overview's table of destinations. `breaker` is None while the circuit breaker is closed."""

    name: str
    kind: str
    workers: int
    breaker: dict[str, Any] | None
    failed: int


def destination_rows(view: Overview) -> list[DestinationRow]:
    """Return the destinations of the running workers. Those whose circuit breaker is not closed come first."""
    kinds: dict[str, str] = {}
    workers: Counter[str] = Counter()
    for process in view.workers:
        for name, details in process.details.get("destinations", {}).items():
            kinds[name] = str(details.get("kind", ""))
            workers[name] += 1
    failed: Counter[str] = Counter()
    for failure in view.failures:
        failed[failure.destination] += failure.events
    rows = [
        DestinationRow(name, kinds.get(name, ""), workers[name], view.breakers.get(name), failed[name])
        for name in sorted({*kinds, *view.breakers})
    ]
    return sorted(rows, key=lambda row: row.breaker is None)


@dataclass(frozen=True, slots=True)
class Listing:
    """What the list of events shows. `count` is None for a search."""

    now: datetime
    page: Page
    # The arguments of the jobs on the page, masked, by id.
    arguments: dict[UUID, str]
    count: Count | None
    types: list[str]
    actors: list[str]


async def events(request: Request) -> Response:
    """List the events that match a filter or a search; redirect to the event if the search is its id."""
    given = request.query_params
    filter = parameters.parse_filter(given)
    after = parameters.parse_after(given)
    search = parameters.parse_text(given, "q")
    dashboard = dashboard_of(request)
    box = dashboard.box

    def query() -> Listing:
        with box.dialect.connection():
            now = box.dialect.now()
            names = queries.event_types(box.dialect), queries.actors(box.dialect)
            if search:
                page, count = Page(queries.search(box.dialect, search)), None
            else:
                page, count = queries.page_and_count(box.dialect, filter, after=after, limits=dashboard.scan_limits)
            return Listing(now, page, _arguments(dashboard, page.events), count, *names)

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
        actions=actions_for(filter.status),
        notice=notice(request, filter.only_kind),
    )


def _arguments(dashboard: Dashboard, events: list[OutboxEvent]) -> dict[UUID, str]:
    """Return the arguments of those of the rows that are jobs, masked and cut, by id."""
    payloads = queries.payloads_of_jobs(dashboard.box.dialect, events)
    jobs = [event for event in events if event.kind == JOB]
    return {job.id: listed_arguments(job, payloads.get(job.id), dashboard.masking) for job in jobs}


@dataclass(frozen=True, slots=True)
class EventDetails:
    """What the page of one event shows, read in one connection."""

    event: OutboxEvent
    now: datetime
    states: list[DestinationState]
    audits: list[Audit]
    destination_names: list[str]


def _read_event(box: Outbox, id: UUID) -> EventDetails | None:
    with box.dialect.connection():
        event = queries.find(box.dialect, id)
        if event is None:
            return None
        return EventDetails(
            event,
            box.dialect.now(),
            destination_states(event, queries.delivered_to(box.dialect, event)),
            _audits_of(box, id),
            queries.destination_names(box.dialect, box.registry),
        )


async def event(request: Request) -> Response:
    """Show everything about one event or job, and the actions that apply to it."""
    id = parameters.parse_id(request.path_params["id"])
    dashboard = dashboard_of(request)
    box = dashboard.box
    details = await run_in_threadpool(_read_event, box, id)
    if details is None:
        raise HTTPError(404, "Event not found", f"{id} does not exist, or was deleted after its retention.")
    shown = details.event
    is_job = shown.kind == JOB
    return render(
        request,
        "event.html",
        event=shown,
        job=job_view(shown, shown.payload, dashboard.masking) if is_job else None,
        now=details.now,
        next_step=next_step(details.event, details.now, box.settings),
        states=details.states,
        reached_none=details.event.audience is not None,
        timeline=make_timeline(details.event, details.now, details.audits),
        payload=None if is_job else dashboard.masking.masked(details.event.payload),
        headers=dashboard.masking.masked(details.event.headers),
        actions=actions_for(details.event.status),
        targets=details.destination_names,
        notice=notice(request, shown.kind),
    )


async def audit(request: Request) -> Response:
    """List the latest actions of operators."""
    box = dashboard_of(request).box

    def query() -> tuple[datetime, list[Audit]]:
        with box.dialect.connection():
            return box.dialect.now(), latest(box.dialect)

    now, entries = await run_in_threadpool(query)
    return render(request, "audit.html", now=now, entries=entries, notice=notice(request))


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
