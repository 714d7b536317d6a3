"""Respond to the probes of Kubernetes and of load balancers: `/healthz` and `/readyz`.

They need no password and accept any Host header, because a kubelet knows neither the password nor the host name. So
they only say whether the dashboard works, and query the database at most once a second.
"""

from __future__ import annotations

import math
import threading
import time

from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from outbox.admin.web.dashboard import Dashboard
from outbox.errors import OutboxError
from outbox.storage.connection_errors import CONNECTION_ERRORS

LIVE, READY = "/healthz", "/readyz"
STATEMENT_SECONDS = 3.0
REMEMBERED_SECONDS = 1.0


class Probes:
    """ASGI middleware that responds to the two paths, and passes on everything else."""

    def __init__(self, app: ASGIApp, *, dashboard: Dashboard) -> None:
        self._app = app
        self._dashboard = dashboard
        self._is_ready = False
        self._asked_at = -math.inf
        self._asking = threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if scope["type"] != "http" or path not in (LIVE, READY):
            await self._app(scope, receive, send)
            return
        is_fine = path == LIVE or await run_in_threadpool(self._check)
        response = PlainTextResponse("ok\n") if is_fine else PlainTextResponse("the database can't be used\n", 503)
        await response(scope, receive, send)

    def _check(self) -> bool:
        """Return whether the database can be read and has the tables.

        While one request queries it, others get the last result. Otherwise requests without a password could occupy
        every thread of the dashboard while the database does not respond.
        """
        if time.monotonic() - self._asked_at >= REMEMBERED_SECONDS and self._asking.acquire(blocking=False):
            try:
                box = self._dashboard.box
                with box.dialect.bounded(STATEMENT_SECONDS):
                    box.check_schema()
                self._is_ready = True
            except (OutboxError, *CONNECTION_ERRORS):
                self._is_ready = False
            finally:
                self._asked_at = time.monotonic()
                self._asking.release()
        return self._is_ready
