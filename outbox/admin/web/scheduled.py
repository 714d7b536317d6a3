"""Serve the page of what is due later: delayed events and jobs, and what waits for its next attempt."""

from __future__ import annotations

from datetime import datetime

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from outbox.admin.hidden_content import hide_in_rows
from outbox.admin.scheduled import Scheduled, read_scheduled
from outbox.admin.web import parameters
from outbox.admin.web.dashboard import dashboard_of
from outbox.admin.web.permissions import PAYLOADS, VIEW, may, require
from outbox.admin.web.render import render

UNTRIED, RETRIES = WHICH = ("scheduled", "retries")


async def scheduled(request: Request) -> Response:
    """List what is due later, the first of it first."""
    require(request, VIEW)
    which = parameters.parse_choice(request.query_params, "which", WHICH) or UNTRIED
    box = dashboard_of(request).box

    def query() -> tuple[datetime, Scheduled]:
        with box.dialect.bounded():
            now = box.dialect.now()
            found = read_scheduled(box.dialect, now, untried=which == UNTRIED)
            if not may(request, PAYLOADS):
                hide_in_rows(box.dialect, box.cipher, found.events)
            return now, found

    now, found = await run_in_threadpool(query)
    return render(request, "scheduled.html", now=now, found=found, which=which)
