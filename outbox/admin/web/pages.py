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

from outbox.admin import queries, story
from outbox.admin.overview import Overview, database_now
from outbox.admin.overview import overview as look_over
from outbox.admin.queries import Count, Page
from outbox.admin.web import parameters
from outbox.admin.web.action_texts import DEEDS, deeds_for, told
from outbox.admin.web.alerts import alerts
from outbox.admin.web.chart import chart
from outbox.admin.web.dashboard import dashboard_of
from outbox.admin.web.http_errors import HTTPError
from outbox.admin.web.render import render
from outbox.admin.web.timeline import timeline
from outbox.core import Outbox
from outbox.operations import audit as audits
from outbox.storage.models import OutboxEvent
from outbox.storage.records import Audit


async def overview(request: Request) -> Response:
    view = await run_in_threadpool(look_over, dashboard_of(request).box)
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
            now = database_now(box)
            types = queries.event_types(box)
            if search:
                return Listing(now, Page(queries.search(box, search)), None, types)
            return Listing(now, *queries.page_and_count(box, which, after=after), types)

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
        deeds=deeds_for(which.status),
        notice=notice(request),
    )


async def event(request: Request) -> Response:
    id = parameters.id_of(request.path_params["id"])
    dashboard = dashboard_of(request)
    box = dashboard.box

    def look() -> tuple[OutboxEvent | None, list[story.Stop], datetime, list[Audit], list[str]]:
        with box.dialect.connection():
            event = queries.find(box, id)
            stops = [] if event is None else story.stops(event, queries.had_by(box, event))
            return event, stops, database_now(box), _about(box, id), queries.destination_names(box)

    found, stops, now, done, known = await run_in_threadpool(look)
    if found is None:
        raise HTTPError(404, "There is no such event", f"{id} does not exist, or was deleted after its retention.")
    return render(
        request,
        "event.html",
        event=found,
        now=now,
        next_step=story.next_step(found, now, box.settings),
        stops=stops,
        had_by_none=found.audience is not None,
        timeline=timeline(found, now, done),
        payload=dashboard.masking.masked(found.payload),
        headers=dashboard.masking.masked(found.headers),
        deeds=deeds_for(found.status),
        targets=known,
        notice=notice(request),
    )


async def audit(request: Request) -> Response:
    box = dashboard_of(request).box

    def look() -> tuple[datetime, list[Audit]]:
        with box.dialect.connection():
            return database_now(box), audits.latest(box)

    now, entries = await run_in_threadpool(look)
    return render(request, "audit.html", now=now, entries=entries, notice=notice(request))


def notice(request: Request) -> str | None:
    """What has just been done, as the address says: an action's name and a number, nothing else."""
    deed, number = DEEDS.get(request.query_params.get("did", "")), request.query_params.get("number", "")
    if deed is None:
        return None
    if number.isascii() and number.isdecimal() and len(number) < len(str(10**12)):
        return told(deed, int(number))
    return f"{deed.verb} is still under way. It goes on by itself, and is listed here until it has ended."


def _about(box: Outbox, id: UUID) -> list[Audit]:
    """What was done lately to this event by name."""
    return [entry for entry in audits.latest(box) if str(id) in entry.filters.get("ids", ())]


def _is_id(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True
