"""Serve the page of one destination. Its buttons are those of the page of all destinations (`control.py`)."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from outbox.admin.destination_view import DestinationView, read_destination
from outbox.admin.hidden_content import hide_in_attempts
from outbox.admin.web import parameters
from outbox.admin.web.chart import make_chart
from outbox.admin.web.control import NOTICES
from outbox.admin.web.dashboard import dashboard_of
from outbox.admin.web.http_errors import HTTPError
from outbox.admin.web.permissions import PAYLOADS, VIEW, may, require
from outbox.admin.web.render import render


async def destination(request: Request) -> Response:
    """Show one destination: its state, its rate and latency over time, what waits for it, and its latest failures."""
    require(request, VIEW)
    name = parameters.parse_text(request.query_params, "name")
    over = parameters.parse_range(request.query_params)
    box = dashboard_of(request).box

    def query() -> DestinationView:
        with box.dialect.bounded():
            view = read_destination(box.dialect, name, over)
            if not may(request, PAYLOADS):
                hide_in_attempts(box.dialect, box.cipher, view.attempts)
            return view

    view = await run_in_threadpool(query)
    if not view.is_known:
        raise HTTPError(404, "No such destination", f"No worker has recorded a destination called “{name}”.")
    return render(
        request,
        "destination.html",
        view=view,
        now=view.now,
        chart=make_chart(view.history),
        notice=NOTICES.get(request.query_params.get("did", "")),
    )
