"""Serve the page of the streams and queues: how far the consumers of each are behind."""

from __future__ import annotations

from datetime import datetime

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from outbox.admin.processes import processes
from outbox.admin.streams import StreamGroup, stream_groups
from outbox.admin.web.dashboard import dashboard_of
from outbox.admin.web.permissions import VIEW, require
from outbox.admin.web.render import render


async def streams(request: Request) -> Response:
    """List the consumers of streams and queues, those that are furthest behind first."""
    require(request, VIEW)
    dialect = dashboard_of(request).box.dialect

    def query() -> tuple[datetime, list[StreamGroup]]:
        with dialect.bounded():
            now = dialect.now()
            return now, stream_groups(processes(dialect), now)

    now, groups = await run_in_threadpool(query)
    return render(request, "streams.html", now=now, groups=groups)
