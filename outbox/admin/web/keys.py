"""Serve the page of the blocked ordering keys. Its buttons lead to the confirmation page of the actions."""

from __future__ import annotations

from datetime import datetime

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from outbox.admin.blocked_keys import BlockedKeys, read_blocked_keys
from outbox.admin.hidden_content import hide_in_blocked_keys
from outbox.admin.web import parameters
from outbox.admin.web.dashboard import dashboard_of
from outbox.admin.web.pages import allowed, notice
from outbox.admin.web.permissions import PAYLOADS, VIEW, may, require
from outbox.admin.web.render import render
from outbox.operations.actions import RETRY, SKIP

# How many keys the page lists: those that have been blocked for longest.
LISTED_KEYS = 50


async def keys(request: Request) -> Response:
    """List the keys whose events wait, the longest wait first, with the event that holds each of them back."""
    require(request, VIEW)
    box = dashboard_of(request).box
    dialect = box.dialect
    key = parameters.parse_text(request.query_params, "key")

    def query() -> tuple[datetime, BlockedKeys]:
        with dialect.bounded():
            found = read_blocked_keys(dialect, key=key or None, limit=LISTED_KEYS)
            if not may(request, PAYLOADS):
                hide_in_blocked_keys(dialect, box.cipher, found)
            return dialect.now(), found

    now, found = await run_in_threadpool(query)
    return render(
        request,
        "keys.html",
        now=now,
        found=found,
        key=key,
        actions=allowed(request, (RETRY, SKIP)),
        notice=notice(request),
    )
