"""What the pages share: the outbox that they show, and what may be done with it."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request

from outbox.admin.masking import Masking
from outbox.core import Outbox
from outbox.current_outbox import current


class Dashboard:
    """One for each application made by `make_app`."""

    def __init__(self, box: Outbox | None, *, read_only: bool | None) -> None:
        self._box = box
        self._read_only = read_only

    @property
    def box(self) -> Outbox:
        """The process's own, unless another was given; looked up late, when the application has configured it."""
        return current() if self._box is None else self._box

    @property
    def read_only(self) -> bool:
        return self.box.settings.dashboard_read_only if self._read_only is None else self._read_only

    @property
    def masking(self) -> Masking:
        return Masking(self.box.settings.masked_keys)

    def path(self, request: Request, name: str = "overview", **values: Any) -> str:
        """A page's path below wherever the application is mounted; without the host, which a proxy may change."""
        app: Starlette = request.app
        return str(request.scope.get("root_path", "")) + str(app.url_path_for(name, **values))


def dashboard_of(request: Request) -> Dashboard:
    found: Dashboard = request.app.state.dashboard
    return found
