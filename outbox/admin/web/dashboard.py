"""Hold what all pages of one dashboard share: its outbox, whether it is read-only, the masking, and paths of pages."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request

from outbox.admin.masking import Masking
from outbox.admin.queries import SCAN_LIMITS, ScanLimits
from outbox.admin.web.background_action import WAIT_SECONDS, BackgroundActions
from outbox.core import Outbox
from outbox.current_outbox import current
from outbox.operations.count import COUNT_CAP
from outbox.storage.models import OutboxEvent


class Dashboard:
    """The configuration of one application that `make_app` made. Pages get it from `dashboard_of(request)`.

    `count_cap`: the number at which counting the events of an action stops. `scan_limits`: how many events a list may
    read. `wait_seconds`: how long the browser waits for an action.
    """

    def __init__(
        self,
        box: Outbox | None,
        *,
        read_only: bool | None = None,
        count_cap: int = COUNT_CAP,
        scan_limits: ScanLimits = SCAN_LIMITS,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._box = box
        self._read_only = read_only
        self.count_cap = count_cap
        self.scan_limits = scan_limits
        self.wait_seconds = wait_seconds
        self.background_actions = BackgroundActions()

    @property
    def box(self) -> Outbox:
        """Return the outbox that was passed to `make_app`, or else the process's current one.

        The current one is looked up at each request, because the application may configure it after `make_app`.
        """
        return current() if self._box is None else self._box

    @property
    def read_only(self) -> bool:
        return self.box.settings.dashboard_read_only if self._read_only is None else self._read_only

    @property
    def masking(self) -> Masking:
        return Masking(self.box.settings.masked_keys)

    def redacted(self, event: OutboxEvent, payload: Any) -> Any:
        """Return what the application lets be displayed of this payload."""
        return self.box.registry.redactions.displayed(event.event_type, payload)

    def path(self, request: Request, name: str = "overview", **values: Any) -> str:
        """Return the path of a page, with the prefix under which the application is mounted.

        The host is left out, because a proxy may change it.
        """
        app: Starlette = request.app
        return str(request.scope.get("root_path", "")) + str(app.url_path_for(name, **values))


def dashboard_of(request: Request) -> Dashboard:
    """Return the dashboard whose application handles this request."""
    dashboard: Dashboard = request.app.state.dashboard
    return dashboard
