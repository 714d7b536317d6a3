"""What is looked at: overview, events, one event, and what was done by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from outbox.admin import event_state, queries
from outbox.admin.overview import Overview, database_now
from outbox.admin.overview import overview as look_over
from outbox.admin.queries import Page
from outbox.admin.web import parameters
from outbox.admin.web.alerts import alerts
from outbox.admin.web.chart import chart
from outbox.admin.web.dashboard import dashboard_of
from outbox.admin.web.http_errors import HTTPError
from outbox.admin.web.render import render
from outbox.admin.web.timeline import timeline
from outbox.core import Outbox
from outbox.operations import audit as audits
from outbox.operations.actions import ACTIONS, Action, actions_for
from outbox.operations.count import Count
from outbox.storage.models import OutboxEvent
from outbox.storage.operator_models import Audit


async def overview(request: Request) -> Response:
    view = await run_in_threadpool(look_over, dashboard_of(request).box.dialect)
    return render(
        request,
        "overview.html",
        view=view,
        now=view.now,
        chart=chart(view.activity),
        alerts=alerts(view),
        destinations=destinations(view),
        retention=timedelta(hours=dashboard_of(request).box.settings.retention_hours),
    )


@dataclass(frozen=True, slots=True)
class Destination:
    name: str
    kind: str
    workers: int
    breaker: dict[str, Any] | None
    failed: int


def destinations(view: Overview) -> list[Destination]:
    """All that the living workers deliver to, those in trouble first."""
    kinds: dict[str, str] = {}
    known_by: Counter[str] = Counter()
    for process in view.workers:
        for name, details in process.details.get("destinations", {}).items():
            kinds[name] = str(details.get("kind", ""))
            known_by[name] += 1
    failed: Counter[str] = Counter()
    for failure in view.failures:
        failed[failure.destination] += failure.events
    found = [
        Destination(name, kinds.get(name, ""), known_by[name], view.breakers.get(name), failed[name])
        for name in sorted({*kinds, *view.breakers})
    ]
    return sorted(found, key=lambda each: each.breaker is None)


@dataclass(frozen=True, slots=True)
class Listing:
    """What the list of events shows."""

    now: datetime
    page: Page
    count: Count | None
    types: list[str]


async def events(request: Request) -> Response:
    given = request.query_params
    which = parameters.filter_of(given)
    after = parameters.after_of(given)
    search = parameters.text(given, "q")
    box = dashboard_of(request).box

    def look() -> Listing:
        with box.dialect.connection():
            now = database_now(box.dialect)
            types = queries.event_types(box.dialect)
            if search:
                return Listing(now, Page(queries.search(box.dialect, search)), None, types)
            return Listing(now, *queries.page_and_count(box.dialect, which, after=after), types)

    listing = await run_in_threadpool(look)
    if search and len(listing.page.events) == 1 and _is_id(search):
        return RedirectResponse(dashboard_of(request).path(request, "event", id=listing.page.events[0].id), 303)
    return render(
        request,
        "events.html",
        now=listing.now,
        page=listing.page,
        count=listing.count,
        types=listing.types,
        parameters=parameters.parameters_of(given),
        fields=dict.fromkeys(parameters.NAMES, "") | parameters.parameters_of(given),
        search=search,
        after=after,
        actions=actions_for(which.status),
        notice=notice(request),
    )


async def event(request: Request) -> Response:
    id = parameters.id_of(request.path_params["id"])
    dashboard = dashboard_of(request)
    box = dashboard.box

    def look() -> tuple[OutboxEvent | None, list[event_state.DestinationState], datetime, list[Audit], list[str]]:
        with box.dialect.connection():
            event = queries.find(box.dialect, id)
            states = (
                [] if event is None else event_state.destination_states(event, queries.delivered_to(box.dialect, event))
            )
            return (
                event,
                states,
                database_now(box.dialect),
                _about(box, id),
                queries.destination_names(box.dialect, box.registry),
            )

    found, states, now, done, known = await run_in_threadpool(look)
    if found is None:
        raise HTTPError(404, "There is no such event", f"{id} does not exist, or was deleted after its retention.")
    return render(
        request,
        "event.html",
        event=found,
        now=now,
        next_step=event_state.next_step(found, now, box.settings),
        states=states,
        reached_none=found.audience is not None,
        timeline=timeline(found, now, done),
        payload=dashboard.masking.masked(found.payload),
        headers=dashboard.masking.masked(found.headers),
        actions=actions_for(found.status),
        targets=known,
        notice=notice(request),
    )


async def audit(request: Request) -> Response:
    box = dashboard_of(request).box

    def look() -> tuple[datetime, list[Audit]]:
        with box.dialect.connection():
            return database_now(box.dialect), audits.latest(box.dialect)

    now, entries = await run_in_threadpool(look)
    return render(request, "audit.html", now=now, entries=entries, notice=notice(request))


def notice(request: Request) -> str | None:
    """What has just been done, as the address says: an action's name and a number, nothing else."""
    action, number = ACTIONS.get(request.query_params.get("did", "")), request.query_params.get("number", "")
    if action is None:
        return None
    if number.isascii() and number.isdecimal() and len(number) < len(str(10**12)):
        return _result(action, int(number))
    return f"{action.label} is still under way. It goes on by itself, and is listed here until it has ended."


def _result(action: Action, number: int) -> str:
    """Return what an action has done, as a sentence."""
    if number == 0:
        return f"Nothing was {action.done}: only events that {action.applies_to} can be."
    return f"{number:,} {'event was' if number == 1 else 'events were'} {action.done}."


def _about(box: Outbox, id: UUID) -> list[Audit]:
    """What was done lately to this event by name."""
    return [entry for entry in audits.latest(box.dialect) if str(id) in entry.filters.get("ids", ())]


def _is_id(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True
