"""Serve `/metrics` for Prometheus, if its client library is installed."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from outbox.admin.web.dashboard import dashboard_of
from outbox.admin.web.permissions import METRICS, VIEW, may, require
from outbox.errors import SettingsError


async def metrics(request: Request) -> Response:
    """Respond with the metrics, or with 404 if prometheus-client is not installed."""
    if not may(request, METRICS):
        require(request, VIEW)
    try:
        from outbox.admin.metrics import exposition
    except SettingsError as error:  # the import raises it if prometheus-client is not installed
        return PlainTextResponse(f"{error}\n", 404)
    body, content_type = await run_in_threadpool(exposition, dashboard_of(request).box)
    return Response(body, headers={"Content-Type": content_type})
