"""Serve the page of one actor: its jobs over time, those that wait, and those that have failed."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from outbox.admin.actor_view import ActorView, read_actor
from outbox.admin.hidden_content import hide_in_rows
from outbox.admin.web import parameters
from outbox.admin.web.chart import make_chart
from outbox.admin.web.dashboard import dashboard_of
from outbox.admin.web.pages import allowed
from outbox.admin.web.permissions import PAYLOADS, VIEW, may, require
from outbox.admin.web.render import render
from outbox.operations.actions import RETRY


async def actor(request: Request) -> Response:
    """Show one actor. A name that no job has is no error: its jobs may have been deleted after their retention."""
    require(request, VIEW)
    name = parameters.parse_text(request.query_params, "name")
    over = parameters.parse_range(request.query_params)
    dashboard = dashboard_of(request)
    box = dashboard.box

    def query() -> ActorView:
        with box.dialect.bounded():
            view = read_actor(box.dialect, name, over, dashboard.scan_limits)
            if not may(request, PAYLOADS):
                hide_in_rows(box.dialect, box.cipher, [*view.waiting.events, *view.failed.events])
            return view

    view = await run_in_threadpool(query)
    chart = make_chart(view.history)
    return render(request, "actor.html", view=view, now=view.now, chart=chart, actions=allowed(request, (RETRY,)))
